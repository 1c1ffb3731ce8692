package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContinueTakesEarlierRows(t *testing.T) {
	b := &bench{work: t.TempDir()}
	if r, err := readEarlier(b.resultFile()); err != nil || len(r.Rows) != 0 {
		t.Fatalf("no file: %v, %d rows", err, len(r.Rows))
	}
	want := example()
	want.Rows[0].Group, want.Rows[1].Group, want.Rows[2].Group = "start", "memory", "apply"
	want.Rows = append(want.Rows, row{Group: "apply", ID: "created", Ours: series{Samples: []float64{1}}})
	if err := b.save(want); err != nil {
		t.Fatal(err)
	}
	got, err := readEarlier(b.resultFile())
	if err != nil || markdown(got) != markdown(want) {
		t.Fatalf("%v: the table changed on its way through the file:\n%s\nwant:\n%s", err, markdown(got), markdown(want))
	}
	for group, rows := range map[string]int{"start": 1, "memory": 1, "apply": 0, "disk": 0} {
		if got := got.measured(group); len(got) != rows {
			t.Errorf("%s: %d rows are taken, want %d", group, len(got), rows)
		}
	}
	for name, tt := range map[string]struct {
		now  []fact
		want string
	}{
		"the same":     {want.Facts, ""},
		"another day":  {append([]fact{{runFact, "tomorrow"}}, want.Facts...), ""},
		"another QEMU": {[]fact{{"Machine", "none"}, {"QEMU", "12"}}, "QEMU"},
	} {
		if got := got.differs(tt.now); got != tt.want {
			t.Errorf("%s: %q differs, want %q", name, got, tt.want)
		}
	}
	if err := os.WriteFile(filepath.Join(b.work, "result.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readEarlier(b.resultFile()); err == nil {
		t.Error("a file that is cut off is taken")
	}
}

// TestContinuedRunIsKept: what an earlier run measured is still in the file when this run breaks off.
func TestContinuedRunIsKept(t *testing.T) {
	old := row{Group: "second", ID: "old", Ours: series{Samples: []float64{1}}}
	b := &bench{work: t.TempDir(), earlier: result{Rows: []row{old}}}
	again := func(name string) group {
		return group{name: name, rows: []row{{ID: "new"}}, measure: func(r *run) { r.add("new", 1) }}
	}
	r := result{}
	if err := b.measure(t.Context(), []group{again("first"), again("second")}, &r); err != nil {
		t.Fatal(err)
	}
	kept, err := readEarlier(b.resultFile())
	if err != nil || len(kept.Rows) != 2 || kept.Rows[0].ID != "new" || kept.Rows[1].ID != "old" {
		t.Errorf("%v: the file has %+v", err, kept.Rows)
	}
}
