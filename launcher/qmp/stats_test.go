package qmp

import (
	"runtime"
	"strings"
	"testing"
)

// answering plays a QEMU that answers every command with one of the replies.
func answering(t *testing.T, replies map[string]string) *Client {
	t.Helper()
	return start(t, Options{}, func(f *fake) {
		for {
			g, err := f.next()
			if err != nil {
				return
			}
			reply := replies[g.Execute]
			if reply == "" {
				reply = "{}"
			}
			f.send(`{"return": %s, "id": %d}`, reply, g.ID)
		}
	})
}

func TestStatsOfDevices(t *testing.T) {
	c := answering(t, map[string]string{
		"query-blockstats": `[{"qdev": "disk-a", "stats": {"rd_bytes": 512, "wr_total_time_ns": 7, "new": []}, "node-name": "x"}, {"stats": {}}]`,
		"query-balloon":    `{"actual": 1024}`,
		// None is all ones, as an unsigned number or as a signed one.
		"qom-get": `{"stats": {"stat-free-memory": 5, "stat-total-memory": 18446744073709551615, "stat-disk-caches": -1}, "last-update": 1700000000}`,
	})
	var blocks []BlockStats
	if err := c.QueryBlockStats(t.Context(), func(b BlockStats) { blocks = append(blocks, b) }); err != nil || len(blocks) != 2 ||
		blocks[0] != (BlockStats{"disk-a", BlockDeviceStats{ReadBytes: 512, WriteTime: 7}}) {
		t.Errorf("%+v, %v", blocks, err)
	}
	if actual, err := c.QueryBalloon(t.Context()); err != nil || actual != 1024 {
		t.Errorf("balloon: %d, %v", actual, err)
	}
	g, err := c.BalloonStats(t.Context(), "balloon0")
	if err != nil || g.Updated != 1700000000 || g.Free == nil || *g.Free != 5 || g.Total != nil || g.Caches != nil || g.Available != nil {
		t.Errorf("guest: %+v, %v", g, err)
	}
	if err := c.AskBalloon(t.Context(), "balloon0"); err != nil {
		t.Error(err)
	}
}

func TestBadStats(t *testing.T) {
	for _, reply := range []string{`{}`, `"text"`, `[1]`, `[{"stats": 1}]`, `[{"stats": {"rd_bytes": -1}}]`, `null`} {
		c := answering(t, map[string]string{"query-blockstats": reply, "qom-get": `{"stats": {"stat-free-memory": "x"}}`})
		if err := c.QueryBlockStats(t.Context(), func(BlockStats) {}); err == nil {
			t.Errorf("%s is taken for statistics", reply)
		}
		if _, err := c.BalloonStats(t.Context(), "balloon0"); err == nil {
			t.Error("a text is taken for a number")
		}
	}
}

// TestManyStats: as many devices as a line holds take no more than the line.
func TestManyStats(t *testing.T) {
	line := []byte("[" + strings.Repeat("{},", maxLine/3-10) + "{}]")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	err := eachOf(line, func(BlockStats) {
		if n++; n == maxLine/6 {
			runtime.GC()
			runtime.ReadMemStats(&after)
		}
	})
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); err != nil || grown > 3*maxLine {
		t.Errorf("the heap grew by %d bytes, %v", grown, err)
	}
}
