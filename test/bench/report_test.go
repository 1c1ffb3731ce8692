package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	samples := func(v ...float64) series { return series{Name: "x", Samples: v} }
	tests := map[string]struct {
		row  row
		want verdict
	}{
		"within":         {row{Ours: samples(7, 8, 9), Limit: 8}, held},
		"over":           {row{Ours: samples(8.1), Limit: 8}, notHeld},
		"no budget":      {row{Ours: samples(1000)}, noBudget},
		"nothing":        {row{Limit: 8}, unmeasured},
		"failed":         {row{Ours: samples(1), Limit: 8, Failure: "why"}, unmeasured},
		"ratio within":   {row{Ours: samples(150, 300), Beside: []series{samples(100, 200)}, Limit: 1.5, OfRatio: true}, held},
		"ratio over":     {row{Ours: samples(16), Beside: []series{samples(10), samples(100)}, Limit: 1.5, OfRatio: true}, notHeld},
		"rate within":    {row{Unit: megabytesPerSecond, Ours: samples(95), Beside: []series{samples(100)}, Limit: 0.9, OfRatio: true}, held},
		"rate below":     {row{Unit: megabytesPerSecond, Ours: samples(85), Beside: []series{samples(100)}, Limit: 0.9, OfRatio: true}, notHeld},
		"nothing beside": {row{Ours: samples(1), Limit: 1.5, OfRatio: true}, unmeasured},
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

func example() result {
	return result{Facts: []fact{{"Machine", "none"}}, Rows: []row{
		{ID: "start", What: "start → <running>", Unit: milliseconds, Ours: series{Name: "virt-launcher", Samples: []float64{60, 62}},
			Beside: []series{{Name: "bare", Samples: []float64{40, 50}}, {Name: "warm", Samples: []float64{300, 310}}, {Name: "cold", Samples: []float64{900, 950}}}, Limit: 1.5, OfRatio: true},
		{ID: "launcher", What: "launcher", Unit: mebibytes, Ours: series{Samples: []float64{5.5}}, Limit: 8, Parts: []series{{Name: "private", Samples: []float64{1.75}}}},
		{ID: "apply", What: "apply", Failure: "no cluster", OfRatio: true, Limit: 1.5, Beside: []series{{Name: "pod"}}},
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
	if text := numbers(example()); !strings.Contains(text, "61.0 ms, 1.37 × bare") || strings.Contains(text, "kubectl apply") {
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
