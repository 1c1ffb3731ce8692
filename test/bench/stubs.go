package main

import "context"

func memoryRows(ctx context.Context, b *bench) ([]row, error) { return nil, nil }
func imageRows(ctx context.Context, b *bench) ([]row, error)  { return nil, nil }
func planeRows(ctx context.Context, b *bench) ([]row, error)  { return nil, nil }
func applyRows(ctx context.Context, b *bench) ([]row, error)  { return nil, nil }
func idleRows(ctx context.Context, b *bench) ([]row, error)   { return nil, nil }
func (b *bench) clusterUp(ctx context.Context) error          { return nil }
func (b *bench) clusterDown() error                           { return nil }
func (b *bench) report(rows []row, w bool) error {
	for _, r := range rows {
		b.say("%+v %v %v", r, r.ratio(), r.verdict())
	}
	return nil
}
