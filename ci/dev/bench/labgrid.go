package bench

import "context"

func (b *hubBench) labgrid(context.Context) error { return nil }
