package node

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"writ/actors/entity"
	"writ/actors/gateway"
	"writ/persistence"
	nodev1 "writ/proto/writ/node/v1"
	recordv1 "writ/proto/writ/record/v1"
	"writ/sharding"
)

// inspectMax bounds the lanes, and the rows of a lane, of one inspection.
const inspectMax = 100

// AuditFindings implements AdminService: what the background auditor knows.
func (a *admin) AuditFindings(ctx context.Context, req *nodev1.AuditFindingsRequest) (*nodev1.AuditFindingsResponse, error) {
	_, lease, err := a.leading(req.GetShard())
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if lease == nil {
		return forwardUnary(ctx, a, req.GetShard(), req, nodev1.AdminServiceClient.AuditFindings)
	}
	res := &nodev1.AuditFindingsResponse{Shard: req.GetShard(), Node: a.node.cfg.ID}
	for _, v := range a.node.auditor.views() {
		if v.shard != req.GetShard() {
			continue
		}
		res.Index, res.Effects, res.Keys, res.LanesChecked = v.index, v.effects, v.keys, v.lanesChecked
		if !v.finished.IsZero() {
			res.FinishedAt = v.finished.UnixNano()
		}
		for _, kind := range kindsOfFinding() {
			res.Findings = append(res.Findings, v.findings[kind]...)
		}
	}
	return res, nil
}

// Inspect implements AdminService: all that is stored about one entity.
func (a *admin) Inspect(ctx context.Context, req *nodev1.InspectRequest) (*nodev1.InspectResponse, error) {
	ref := refOf(req.GetEntity())
	if ref.Tenant == "" || ref.Kind == "" || ref.ID == "" {
		return nil, gateway.ToStatus(entity.Errorf(entity.Invalid, "name the entity by tenant, kind and id"))
	}
	if a.node.table.Shards() == 0 {
		return nil, gateway.ToStatus(errNotFormed())
	}
	shard := sharding.Locate(a.node.table.Shards(), ref)
	p, lease, err := a.leading(shard)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	if lease == nil {
		return forwardUnary(ctx, a, shard, req, nodev1.AdminServiceClient.Inspect)
	}
	if err := awaitBarrier(ctx, lease); err != nil {
		return nil, gateway.ToStatus(err)
	}
	store, err := p.store(shard)
	if err != nil {
		return nil, gateway.ToStatus(err)
	}
	res := &nodev1.InspectResponse{
		Shard: shard, Leader: a.node.cfg.ID, Term: lease.Term(),
		LogTime: lease.LogTime(), ExpiredThrough: store.ExpiredThrough(),
	}
	if err := inspect(store, a.node.registry.Kind(ref.Kind), ref, req, res); err != nil {
		return nil, gateway.ToStatus(err)
	}
	// What a program of earlier days has stored is shown; nothing, of a kind that
	// is not registered, is a misspelt name.
	if res.GetEntity() == nil && res.GetKey() == nil && len(res.GetIncoming()) == 0 && len(res.GetOutgoing()) == 0 {
		if err := a.findKinds(ref.Kind); err != nil {
			return nil, gateway.ToStatus(err)
		}
	}
	return res, nil
}

// findKinds refuses kinds that are not registered, with the list of those that are.
func (a *admin) findKinds(kinds ...string) error {
	for _, kind := range kinds {
		if _, err := a.node.registry.Find(kind); err != nil {
			return err
		}
	}
	return nil
}

// messageOf is an error's text without its reason, to be quoted in another one.
func messageOf(err error) string {
	if e, ok := errors.AsType[*entity.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// inspect reads an entity without payloads: they may be nobody's business.
func inspect(store *persistence.Store, def *entity.Definition, ref entity.Ref, req *nodev1.InspectRequest, res *nodev1.InspectResponse) (err error) {
	if res.Entity, err = store.Entity(ref); err != nil {
		return err
	}
	if res.GetEntity().GetState() != nil {
		res.Entity.State.Data = nil
	}
	if len(req.GetKey()) > 0 {
		if res.Key, err = findKey(store, def, ref, req); err != nil {
			return err
		}
		if res.GetKey().GetOutcome().GetReply() != nil {
			res.Key.Outcome.Reply.Data = nil
		}
	}
	if err := inspectOutgoing(store, ref, res); err != nil {
		return err
	}
	if req.GetSource() != nil {
		mark, err := store.Applied(ref, refOf(req.GetSource()))
		if err != nil {
			return err
		}
		res.Applied = mark.GetLaneSequence()
	}
	marks, err := store.MarksOf(ref, inspectMax+1)
	for i, m := range marks {
		if i == inspectMax {
			res.CutIncoming = true
			break
		}
		res.Incoming = append(res.Incoming, &nodev1.AuditLane{Source: protoRef(m.Source), Destination: protoRef(ref), Applied: m.Mark.GetLaneSequence()})
	}
	return err
}

// findKey looks a key up; without a command's type under all commands of the kind.
func findKey(store *persistence.Store, def *entity.Definition, ref entity.Ref, req *nodev1.InspectRequest) (found *recordv1.KeyRecord, err error) {
	if req.GetCommandType() != "" || def == nil {
		return store.Key(ref, req.GetCommandType(), req.GetKey())
	}
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if name := string(mt.Descriptor().FullName()); def.Command(name) != nil {
			found, err = store.Key(ref, name, req.GetKey())
		}
		return found == nil && err == nil
	})
	return found, err
}

// inspectOutgoing shows the lanes that the key's command has emitted to, the others
// in which most rows wait, and then any. Those that wait come first.
func inspectOutgoing(store *persistence.Store, ref entity.Ref, res *nodev1.InspectResponse) (err error) {
	known := map[entity.Ref]bool{}
	var named []*nodev1.InspectedLane
	for _, e := range res.GetKey().GetOutcome().GetEmitted() { // few: an outcome names no more
		to := entity.Ref{Tenant: ref.Tenant, Kind: e.GetKind(), ID: e.GetId()}
		lane, err := store.Lane(ref, to)
		if err != nil {
			return err
		}
		if lane != nil && !known[to] {
			known[to] = true
			named = append(named, &nodev1.InspectedLane{Destination: protoRef(to), Lane: lane})
		}
	}
	others, cut, err := otherLanes(store, ref, known, inspectMax-len(named))
	if err != nil {
		return err
	}
	res.Outgoing, res.Cut = append(named, others...), cut
	slices.SortFunc(res.GetOutgoing(), byWaiting)
	for _, l := range res.GetOutgoing() {
		if waiting(l.GetLane()) == 0 {
			break
		}
		if l.Rows, err = firstRows(store, ref, refOf(l.GetDestination()), l.GetLane().GetConfirmed()+1); err != nil {
			return err
		}
	}
	return nil
}

// otherLanes are the lanes of a source in which most rows wait, and then any, but
// not those that are known already: at most limit of them. An entity may have opened
// a million lanes: at no time there are more in memory than those of two pages.
func otherLanes(store *persistence.Store, source entity.Ref, known map[entity.Ref]bool, limit int) (lanes []*nodev1.InspectedLane, cut bool, err error) {
	add := func(page []persistence.LaneState) {
		for _, l := range page {
			if !known[l.Destination] {
				lanes = append(lanes, &nodev1.InspectedLane{Destination: protoRef(l.Destination), Lane: l.Lane})
			}
		}
		slices.SortFunc(lanes, byWaiting)
		if len(lanes) > limit {
			lanes, cut = slices.Clip(lanes[:limit]), true
		}
	}
	for at := (persistence.Pair{Source: source}); ; {
		page, err := store.LanesFrom(at, true, pageRows)
		if err != nil {
			return nil, false, err
		}
		add(page)
		if len(page) < pageRows {
			break
		}
		at = page[len(page)-1].Pair
	}
	if cut {
		return lanes, cut, nil // more wait than are shown
	}
	for _, l := range lanes {
		known[refOf(l.GetDestination())] = true
	}
	// As many as are known, and what there is room for, and one that tells that there
	// are more.
	page, err := store.LanesFrom(persistence.Pair{Source: source}, false, len(known)+limit-len(lanes)+1)
	add(page)
	return lanes, cut, err
}

// byWaiting is the order in which lanes are shown.
func byWaiting(a, b *nodev1.InspectedLane) int {
	return cmp.Or(-cmp.Compare(waiting(a.GetLane()), waiting(b.GetLane())),
		cmp.Compare(a.GetDestination().GetKind(), b.GetDestination().GetKind()), cmp.Compare(a.GetDestination().GetId(), b.GetDestination().GetId()))
}

// firstRows are the first rows of a lane, without their events' bytes. They are read
// by pages: a hundred events can be large, and what is read at once keeps Apply out.
func firstRows(store *persistence.Store, source, destination entity.Ref, from uint64) (list []*recordv1.Row, err error) {
	for len(list) < inspectMax {
		rows, err := store.Rows(source, destination, from, inspectMax-len(list), pageBytes)
		if err != nil || len(rows) == 0 {
			return list, err
		}
		for _, row := range rows {
			row, _ = bare(row)
			list = append(list, row)
		}
		from = rows[len(rows)-1].GetLaneSequence() + 1
	}
	return list, nil
}

// waiting is the number of a lane's rows that are not confirmed.
func waiting(l *recordv1.Lane) uint64 { return l.GetNumbered() - l.GetConfirmed() }
