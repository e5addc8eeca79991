//go:build mutants

package mutant

import "os"

// Off reports whether a safeguard is switched off by the environment.
func Off(s Safeguard) bool { return os.Getenv(Variable) == string(s) }
