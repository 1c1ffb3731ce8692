package zone

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

func TestOffsetOfATimeZone(t *testing.T) {
	winter, summer := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC), time.Date(2026, 7, 15, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		zone string
		at   time.Time
		want *int64
	}{
		{"Europe/Berlin", winter, ptr.To[int64](3600)}, {"Europe/Berlin", summer, ptr.To[int64](7200)},
		{"America/New_York", winter, ptr.To[int64](-5 * 3600)}, {"Asia/Kathmandu", winter, ptr.To[int64](5*3600 + 45*60)},
		{"UTC", summer, ptr.To[int64](0)}, {"Etc/GMT+5", summer, ptr.To[int64](-5 * 3600)},
		{"", winter, nil}, {"Local", winter, nil}, {"Europe/Nowhere", winter, nil}, {"../../etc/passwd", winter, nil}, {"/etc/localtime", winter, nil},
	} {
		if got := Offset(c.zone, c.at); !ptr.Equal(got, c.want) {
			t.Errorf("%s at %v: %v, want %v", c.zone, c.at, ptr.Deref(got, -1), ptr.Deref(c.want, -1))
		}
	}
}
