package qmp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// BlockStats counts the operations on a device's block backend (qapi/block-core.json,
// BlockStats).
type BlockStats struct {
	// QDev is the QOM path of the device, or of its virtio half.
	QDev  string           `json:"qdev"`
	Stats BlockDeviceStats `json:"stats"`
}

// BlockDeviceStats counts since QEMU was started; times are in nanoseconds.
type BlockDeviceStats struct {
	ReadBytes       uint64 `json:"rd_bytes"`
	WriteBytes      uint64 `json:"wr_bytes"`
	ReadOperations  uint64 `json:"rd_operations"`
	WriteOperations uint64 `json:"wr_operations"`
	FlushOperations uint64 `json:"flush_operations"`
	ReadTime        uint64 `json:"rd_total_time_ns"`
	WriteTime       uint64 `json:"wr_total_time_ns"`
	FlushTime       uint64 `json:"flush_total_time_ns"`
}

// QueryBlockStats hands over the statistics of one device after the other.
func (c *Client) QueryBlockStats(ctx context.Context, each func(BlockStats)) error {
	var all json.RawMessage
	if err := c.Execute(ctx, "query-blockstats", nil, &all); err != nil {
		return err
	}
	if err := eachOf(all, each); err != nil {
		return fmt.Errorf("decode reply to QMP command %q: %w", "query-blockstats", err)
	}
	return nil
}

// eachOf decodes an array, one element at a time: a huge array decoded at once would take many
// times the memory of its text.
func eachOf[T any](array []byte, each func(T)) error {
	d := json.NewDecoder(bytes.NewReader(array))
	if t, err := d.Token(); err != nil {
		return err
	} else if t != json.Delim('[') {
		return errors.New("it is no array")
	}
	for d.More() {
		var element T
		if err := d.Decode(&element); err != nil {
			return err
		}
		each(element)
	}
	return nil
}

// QueryBalloon returns how much of its memory the guest has, in bytes.
func (c *Client) QueryBalloon(ctx context.Context) (uint64, error) {
	var info struct {
		Actual uint64 `json:"actual"`
	}
	err := c.Execute(ctx, "query-balloon", nil, &info)
	return info.Actual, err
}

// GuestStats is what a guest's balloon driver said of its memory, in bytes. Values that it
// does not count are nil.
type GuestStats struct {
	SwapIn, SwapOut, MajorFaults, MinorFaults *uint64
	Free, Total, Available, Caches            *uint64
	// Updated is when the driver said so, in seconds since 1970; 0 if it never did.
	Updated int64
}

// stat is a statistic of the guest. QEMU writes all ones for a missing value, as a signed or
// an unsigned number.
type stat struct{ value *uint64 }

func (s *stat) UnmarshalJSON(text []byte) error {
	var unsigned uint64
	if err := json.Unmarshal(text, &unsigned); err == nil {
		if unsigned != math.MaxUint64 {
			s.value = &unsigned
		}
		return nil
	}
	var signed int64
	return json.Unmarshal(text, &signed)
}

// BalloonStats returns what the guest last said to the balloon with this id.
func (c *Client) BalloonStats(ctx context.Context, id string) (GuestStats, error) {
	var said struct {
		Updated int64 `json:"last-update"`
		Stats   struct {
			SwapIn      stat `json:"stat-swap-in"`
			SwapOut     stat `json:"stat-swap-out"`
			MajorFaults stat `json:"stat-major-faults"`
			MinorFaults stat `json:"stat-minor-faults"`
			Free        stat `json:"stat-free-memory"`
			Total       stat `json:"stat-total-memory"`
			Available   stat `json:"stat-available-memory"`
			Caches      stat `json:"stat-disk-caches"`
		} `json:"stats"`
	}
	err := c.Execute(ctx, "qom-get", property{Path: peripheral(id), Property: "guest-stats"}, &said)
	s := said.Stats
	return GuestStats{SwapIn: s.SwapIn.value, SwapOut: s.SwapOut.value, MajorFaults: s.MajorFaults.value, MinorFaults: s.MinorFaults.value,
		Free: s.Free.value, Total: s.Total.value, Available: s.Available.value, Caches: s.Caches.value, Updated: said.Updated}, err
}

type property struct {
	Path     string `json:"path"`
	Property string `json:"property"`
	Value    any    `json:"value,omitempty"`
}

func peripheral(id string) string { return "/machine/peripheral/" + id }

// AskBalloon makes QEMU ask the guest how its memory is. The guest answers when it runs next;
// QEMU does not wait. QEMU can only ask at an interval, and asks at once when the interval is
// set from 0 (balloon_stats_set_poll_interval in hw/virtio/virtio-balloon.c). So AskBalloon
// sets the interval to 0, and then to 68 years.
func (c *Client) AskBalloon(ctx context.Context, id string) error {
	for _, seconds := range []int64{0, math.MaxInt32} {
		p := property{Path: peripheral(id), Property: "guest-stats-polling-interval", Value: seconds}
		if err := c.Execute(ctx, "qom-set", p, nil); err != nil {
			return err
		}
	}
	return nil
}
