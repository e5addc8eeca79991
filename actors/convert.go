package actors

import (
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"writ/actors/entity"
	recordv1 "writ/proto/writ/record/v1"
)

func toRef(r entity.Ref) *recordv1.Ref {
	return &recordv1.Ref{Tenant: r.Tenant, Kind: r.Kind, Id: r.ID}
}

func fromRef(r *recordv1.Ref) entity.Ref {
	return entity.Ref{Tenant: r.GetTenant(), Kind: r.GetKind(), ID: r.GetId()}
}

const typeURL = "type.googleapis.com/"

func toAny(p *recordv1.Payload) *anypb.Any {
	if p == nil {
		return nil
	}
	return &anypb.Any{TypeUrl: typeURL + p.GetType(), Value: p.GetData()}
}

// typeName is the message's full name in a type URL.
func typeName(a *anypb.Any) string {
	url := a.GetTypeUrl()
	return url[strings.LastIndexByte(url, '/')+1:]
}
