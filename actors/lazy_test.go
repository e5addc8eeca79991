package actors_test

import recordv1 "writ/proto/writ/record/v1"

func (l *lease) ProposeLazily(rec *recordv1.Record, done func(error)) { l.Propose(rec, done) }

func (instant) ProposeLazily(_ *recordv1.Record, done func(error)) { done(nil) }
