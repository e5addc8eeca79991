package entity

import "fmt"

// Ref names an entity. It is always handled as a struct: joining its parts to
// a string would make different entities look the same.
type Ref struct {
	Tenant string
	Kind   string
	ID     string
}

// String is for logs and messages only.
func (r Ref) String() string { return fmt.Sprintf("%s/%s/%q", r.Tenant, r.Kind, r.ID) }

// Address names an entity within the tenant of the entity that uses it.
type Address struct {
	Kind string
	ID   string
}

// To is the address of the entity id of a kind, in the tenant of the emitter.
func To(kind, id string) Address { return Address{Kind: kind, ID: id} }
