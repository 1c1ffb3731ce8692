package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	samples := func(v ...float64) series { return measured("x", v...) }
	ratio := func(limit float64, ours series, beside ...series) row {
		return row{Ours: ours, Beside: beside, Limit: limit, OfRatio: true}
	}
	rate := func(r row) row {
		r.Unit = megabytesPerSecond
		return r
	}
	tests := map[string]struct {
		row  row
		want verdict
	}{
		"within":         {row{Ours: samples(7, 8, 9), Limit: 8}, held},
		"over":           {row{Ours: samples(8.1), Limit: 8}, notHeld},
		"no budget":      {row{Ours: samples(1000)}, noBudget},
		"nothing":        {row{Limit: 8}, unmeasured},
		"failed":         {row{Ours: samples(1), Limit: 8, Failure: "why"}, unmeasured},
		"ratio within":   {ratio(1.5, samples(150, 300), samples(100, 200)), held},
		"ratio over":     {ratio(1.5, samples(16), samples(10), samples(100)), notHeld},
		"rate within":    {rate(ratio(0.9, samples(95), samples(100))), held},
		"rate below":     {rate(ratio(0.9, samples(85), samples(100))), notHeld},
		"nothing beside": {ratio(1.5, samples(1)), unmeasured},
	}
	for name, tt := range tests {
		if got := tt.row.verdict(); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestReplaceBetween(t *testing.T) {
	whole := "before\n" + beginMarker + "\nold\n" + endMarker + "\nafter\n"
	want := "before\n" + beginMarker + "\n\nnew\n\n" + endMarker + "\nafter\n"
	once, err := replaceBetween(whole, "new\n")
	if err != nil || once != want {
		t.Errorf("%v: %q", err, once)
	}
	if twice, err := replaceBetween(once, "new\n"); err != nil || twice != want {
		t.Errorf("again: %v: %q", err, twice)
	}
	for _, bad := range []string{"", beginMarker, endMarker + beginMarker} {
		if _, err := replaceBetween(bad, "new"); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func measured(name string, samples ...float64) series { return series{Name: name, Samples: samples} }

func example() result {
	return result{Facts: []fact{{"Machine", "none"}}, Rows: []row{
		{ID: "start", What: "start → <running>", Unit: milliseconds, Ours: measured("virt-launcher", 60, 62),
			Beside: []series{measured("bare", 40, 50), measured("warm", 300, 310), measured("cold", 900, 950)},
			Limit:  1.5, OfRatio: true},
		{ID: "launcher", What: "launcher", Unit: mebibytes, Ours: measured("", 5.5), Limit: 8,
			Parts: []series{measured("private", 1.75)}},
		{ID: "apply", What: "apply", Failure: "no cluster", OfRatio: true, Limit: 1.5, Beside: named("pod")},
	}}
}

func TestMarkdown(t *testing.T) {
	got := markdown(example())
	for _, want := range []string{
		"| start → <running> | **61.0 ms (60.5–61.5)** | bare: 45.0 ms (42.5–47.5); ours is **1.37 ×** that (1.3–1.44)<br>",
		"| ≤ 1.5 × bare | held |", "| launcher | **5.5 MiB** |", "| ≤ 8 MiB | held |", "| launcher | private | 1.75 MiB |",
		"| apply | – |", "**not measured**",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	text := numbers(example())
	if !strings.Contains(text, "61.0 ms, 1.37 × bare") || strings.Contains(text, "kubectl apply") {
		t.Errorf("README: %s", text)
	}
}

func TestPlotIsXML(t *testing.T) {
	for name, r := range map[string]result{"example": example(), "nothing": {}} {
		d := xml.NewDecoder(strings.NewReader(plot(r)))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, plot(r))
			}
		}
	}
}
