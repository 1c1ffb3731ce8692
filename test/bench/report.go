package main

func (b *bench) report(rows []row, w bool) error {
	for _, r := range rows {
		b.say("%+v %v %v", r, r.ratio(), r.verdict())
	}
	return nil
}
