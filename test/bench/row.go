package main

// series is one thing measured, once a round.
type series struct {
	Name    string    `json:"name"`
	Samples []float64 `json:"samples"`
	// Reference: the figure is not measured in this run, such as what is booked.
	Reference bool `json:"reference,omitempty"`
}

func (s series) summary() summary { return summarise(s.Samples) }

func (s *series) add(sample float64) { s.Samples = append(s.Samples, sample) }

// row is one line of the table: a figure of ours, what stands beside it in
// the same run, and its budget.
type row struct {
	ID     string   `json:"id"`
	Group  string   `json:"group"`
	What   string   `json:"what"`
	Unit   unit     `json:"unit"`
	Ours   series   `json:"ours"`
	Beside []series `json:"beside,omitempty"`
	// Limit of the budget, in Unit, or of ours ÷ Beside[0] where OfRatio is
	// set: at least for a rate, at most for anything else. 0 means that no budget was given.
	Limit   float64 `json:"limit,omitempty"`
	OfRatio bool    `json:"ofRatio,omitempty"`
	// None is a budget of 0.
	None bool `json:"none,omitempty"`
	// Parts say where ours goes. They are no competitors.
	Parts []series `json:"parts,omitempty"`
	Notes []string `json:"notes,omitempty"`
	// Failure says why nothing was measured.
	Failure string `json:"failure,omitempty"`
}

// unit of a row's samples.
type unit string

const (
	milliseconds  unit = "ms"
	seconds       unit = "s"
	mebibytes     unit = "MiB"
	megabytes     unit = "MB"
	thousandBytes unit = "KB"
	kibibytes     unit = "KiB"
	writes        unit = "writes"
	// megabytesPerSecond are 10^6 bytes per second.
	megabytesPerSecond unit = "MB/s"
)

// isRate: more is better.
func (u unit) isRate() bool { return u == megabytesPerSecond }

// ratio of ours to the first beside it, round by round.
func (r row) ratio() summary {
	if len(r.Beside) == 0 {
		return summary{}
	}
	return summarise(ratios(r.Ours.Samples, r.Beside[0].Samples))
}

// verdict on a row.
type verdict string

const (
	held       verdict = "held"
	notHeld    verdict = "**not held**"
	noBudget   verdict = "–"
	unmeasured verdict = "**not measured**"
)

func (r row) verdict() verdict {
	got := r.Ours.summary()
	if r.OfRatio {
		got = r.ratio()
	}
	switch {
	case r.Failure != "" || got.N == 0:
		return unmeasured
	case r.Limit == 0 && !r.None:
		return noBudget
	case r.Unit.isRate() && got.Median >= r.Limit, !r.Unit.isRate() && got.Median <= r.Limit:
		return held
	}
	return notHeld
}
