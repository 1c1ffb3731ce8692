package image

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"
)

func compress(t *testing.T, content []byte, command ...string) []byte {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(content)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return out
}

// TestDecompress: what the usual programs make is read, and what is cut off or corrupt is not.
func TestDecompress(t *testing.T) {
	t.Parallel()
	content := []byte(strings.Repeat("a disk with content, and ", 100_000))
	fault := errors.New("the fault")
	for name, command := range map[string][]string{
		"gzip": {"gzip", "-c"}, "xz": {"xz", "-c"}, "zstd": {"zstd", "-c"}, "xz -9": {"xz", "-9", "-c"}, "zstd -19": {"zstd", "-19", "-c"},
		"zstd --long=25": {"zstd", "--long=25", "-c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			packed := compress(t, content, command...)
			format, err := Detect(packed)
			if err != nil || !format.Compressed() {
				t.Fatalf("it is %q: %v", format, err)
			}
			read := func(from io.Reader) ([]byte, error) {
				r, err := Decompress(format, from)
				if err != nil {
					return nil, err
				}
				defer r.Close()
				return io.ReadAll(r)
			}
			if got, err := read(bytes.NewReader(packed)); err != nil || !bytes.Equal(got, content) {
				t.Errorf("read %d bytes: %v", len(got), err)
			}
			if got, err := read(bytes.NewReader(append(bytes.Clone(packed), packed...))); err != nil || len(got) != 2*len(content) {
				t.Errorf("two in a row: read %d bytes: %v", len(got), err)
			}
			if _, err := read(bytes.NewReader(packed[:len(packed)/2])); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "ends early") {
				t.Errorf("cut off: %v", err)
			}
			if _, err := read(iotest.TimeoutReader(io.MultiReader(bytes.NewReader(packed[:10]), iotest.ErrReader(fault)))); errors.Is(err, ErrUnusable) {
				t.Errorf("cannot be read: %v", err)
			}
			for at := len(packed) / 2; at < len(packed)/2+20; at++ {
				packed[at] ^= 0x55
			}
			if _, err := read(bytes.NewReader(packed)); !errors.Is(err, ErrUnusable) {
				t.Errorf("corrupt: %v", err)
			}
		})
	}
}

// TestCompressedFilesEnd: what the format's own program takes at the end of a file is taken, to the same bytes, and what is cut off is not.
func TestCompressedFilesEnd(t *testing.T) {
	t.Parallel()
	content := []byte(strings.Repeat("a disk with content, and ", 10_000))
	for name, c := range map[string]struct {
		format Format
		pack   []string
		end    func(packed []byte) string // what follows the first stream
		fails  bool
	}{
		"gzip, one":            {Gzip, []string{"gzip", "-c"}, func([]byte) string { return "" }, false},
		"gzip, two":            {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p) }, false},
		"gzip, zeros":          {Gzip, []string{"gzip", "-c"}, func([]byte) string { return strings.Repeat("\x00", 1000) }, false},
		"gzip, a zero":         {Gzip, []string{"gzip", "-c"}, func([]byte) string { return "\x00" }, false},
		"gzip, a signature":    {Gzip, []string{"gzip", "-c"}, func([]byte) string { return "-----BEGIN SIGNATURE-----" }, false},
		"gzip, two and zeros":  {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p) + "\x00\x00\x00" }, false},
		"gzip, half a second":  {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p[:len(p)/2]) }, true},
		"gzip, no checksum":    {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p[:len(p)-4]) }, true},
		"gzip, half a magic":   {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p[:1]) }, true},
		"gzip, half a header":  {Gzip, []string{"gzip", "-c"}, func(p []byte) string { return string(p[:5]) }, true},
		"xz, one":              {XZ, []string{"xz", "-c"}, func([]byte) string { return "" }, false},
		"xz, two":              {XZ, []string{"xz", "-c"}, func(p []byte) string { return string(p) }, false},
		"xz, padding":          {XZ, []string{"xz", "-c"}, func([]byte) string { return strings.Repeat("\x00", 1024) }, false},
		"xz, padding between":  {XZ, []string{"xz", "-c"}, func(p []byte) string { return strings.Repeat("\x00", 8) + string(p) }, false},
		"xz, no whole padding": {XZ, []string{"xz", "-c"}, func([]byte) string { return "\x00\x00\x00" }, true},
		"xz, garbage":          {XZ, []string{"xz", "-c"}, func([]byte) string { return "garbage, garbage" }, true},
		"xz, half a second":    {XZ, []string{"xz", "-c"}, func(p []byte) string { return string(p[:len(p)/2]) }, true},
		"xz, no footer":        {XZ, []string{"xz", "-c"}, func(p []byte) string { return string(p[:len(p)-12]) }, true},
		"xz, another check":    {XZ, []string{"xz", "-c", "--check=sha256"}, func(p []byte) string { return string(p) }, false},
		"zstd, one":            {Zstd, []string{"zstd", "-c"}, func([]byte) string { return "" }, false},
		"zstd, two":            {Zstd, []string{"zstd", "-c"}, func(p []byte) string { return string(p) }, false},
		"zstd, a skippable":    {Zstd, []string{"zstd", "-c"}, func([]byte) string { return "\x5a\x2a\x4d\x18\x03\x00\x00\x00abc" }, false},
		"zstd, half a second":  {Zstd, []string{"zstd", "-c"}, func(p []byte) string { return string(p[:len(p)/2]) }, true},
		"zstd, no checksum":    {Zstd, []string{"zstd", "-c"}, func(p []byte) string { return string(p[:len(p)-4]) }, true},
		"zstd, garbage":        {Zstd, []string{"zstd", "-c"}, func([]byte) string { return "garbage, garbage" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			packed := compress(t, content, c.pack...)
			packed = append(packed, c.end(packed)...)
			tool := exec.Command(c.pack[0], "-d", "-c")
			tool.Stdin = bytes.NewReader(packed)
			want, err := tool.Output()
			var status *exec.ExitError
			if warns := errors.As(err, &status) && status.ExitCode() == 2 && c.format == Gzip; err != nil && !warns != c.fails {
				t.Fatalf("%s: %v", c.pack[0], err)
			}
			// However the bytes come.
			for how, from := range map[string]io.Reader{"at once": bytes.NewReader(packed), "with the end": iotest.DataErrReader(bytes.NewReader(packed)), "byte by byte": iotest.OneByteReader(bytes.NewReader(packed))} {
				r, err := Decompress(c.format, from)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r)
				r.Close()
				if c.fails && !errors.Is(err, ErrUnusable) || !c.fails && (err != nil || !bytes.Equal(got, want)) {
					t.Errorf("%s: %d bytes, %v; %s has %d bytes", how, len(got), err, c.pack[0], len(want))
				}
			}
		})
	}
	frame := []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00pzst")
	if format, err := Detect(append(frame, compress(t, content, "zstd", "-c")...)); err != nil || format != Zstd {
		t.Errorf("a file that begins with a skippable frame is %q, %v", format, err)
	}
}

// TestDecompressRefusesLargeMemory: what would take much memory is refused.
func TestDecompressRefusesLargeMemory(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("x"), 1<<20)
	for _, c := range []struct {
		format  Format
		command []string
		want    string
	}{
		{XZ, []string{"xz", "-c", "--lzma2=dict=128MiB"}, "64 MiB"},
		{Zstd, []string{"zstd", "-c", "--no-check", "--ultra", "-22", "--long=28"}, "32 MiB"},
		{Zstd, []string{"zstd", "-c", "--long=26"}, "32 MiB"},
	} {
		// A stream of unknown length has the whole window in its header.
		packed := compress(t, content, c.command...)
		r, err := Decompress(c.format, bytes.NewReader(packed))
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.command, err)
		}
	}
	// A frame in one segment, whose window is all of its content: 1 GiB, it says.
	if r, err := Decompress(Zstd, strings.NewReader("\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x40"+strings.Repeat("\x00", 64))); err != nil {
		t.Error(err)
	} else if _, err := io.ReadAll(r); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "32 MiB") {
		t.Errorf("one segment: %v", err)
	}
	if _, err := Decompress(Raw, bytes.NewReader(content)); err == nil {
		t.Error("raw is a compression")
	}
}
