package image

import (
	"slices"
	"strings"
	"testing"
)

// TestQEMUImgIsToldAllThatItOpens: qemu-img is told all of what it opens.
func TestQEMUImgIsToldAllThatItOpens(t *testing.T) {
	t.Parallel()
	const socket = "/tmp/nbd-1/image"
	file := `"file":{"driver":"nbd","server":{"type":"unix","path":"/tmp/nbd-1/image"}}`
	for _, c := range []struct {
		format Format
		image  string
	}{
		{QCOW2, `{"driver":"qcow2","backing":null,"l2-cache-entry-size":65536,` + file + `}`},
		{VMDK, `{"driver":"vmdk","backing":null,` + file + `}`},
		{VHDX, `{"driver":"vhdx",` + file + `}`},
		{VDI, `{"driver":"vdi",` + file + `}`},
	} {
		header := Header{Format: c.format, Cluster: 2 << 20}
		got, err := infoCommand(header, socket)
		if want := []string{"info", "--output=json", "json:" + c.image}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", c.format, got, err)
		}
		segment := Segment{Offset: 1 << 29, Bytes: 512}
		for _, to := range []struct {
			target Target
			zeroed bool
			want   string
		}{
			{Target{Path: "/disk/disk.img"}, true, "file.driver=file,file.filename=/disk/disk.img"},
			{Target{Path: "/dev/a,b", Block: true}, false, "file.driver=host_device,file.filename=/dev/a,,b"},
		} {
			got, err := convertCommand(header, socket, segment, to.target, to.zeroed)
			want := []string{"convert", "-n", "-m", "4", "-S", "4k", "--target-is-zero", "--target-image-opts",
				`json:{"driver":"raw","offset":536870912,"size":512,"file":` + c.image + `}`, "driver=raw,offset=536870912,size=512," + to.want}
			if !to.zeroed {
				want = slices.DeleteFunc(want, func(s string) bool { return s == "--target-is-zero" })
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s:\n got %s, %v\nwant %s", c.format, strings.Join(got, " "), err, strings.Join(want, " "))
			}
		}
	}
}
