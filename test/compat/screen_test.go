package compat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// screen looks at the guest's screen in both ways, neither of which is all of one
// colour: the BIOS left some words.
func (m *machine) screen() {
	m.t.Helper()
	instances := m.client.VirtualMachineInstance(m.namespace)
	stream, err := instances.VNC("vm", false)
	m.must(err)
	conn := stream.AsConn()
	defer conn.Close()
	m.must(conn.SetDeadline(time.Now().Add(time.Minute)))
	frame, err := frame(conn)
	m.must(err)
	pixels := map[[4]byte]bool{}
	for i := 0; i+4 <= len(frame); i += 4 {
		pixels[[4]byte(frame[i:i+4])] = true
	}
	if len(frame) < 640*400*4 || len(pixels) < 2 {
		m.t.Errorf("a frame of %d bytes with %d colours", len(frame), len(pixels))
	}
	for _, move := range []bool{false, true} {
		data, err := instances.Screenshot(m.t.Context(), "vm", &v1.ScreenshotOptions{MoveCursor: move})
		m.must(err)
		picture, err := png.Decode(bytes.NewReader(data))
		m.must(err)
		if size := picture.Bounds().Size(); size.X < 640 || size.Y < 400 {
			m.t.Errorf("a screenshot of %v", size)
		}
	}
}

// frame speaks RFB 3.8 (RFC 6143) as far as it takes to be sent the screen once,
// as raw pixels of four bytes.
func frame(conn net.Conn) ([]byte, error) {
	r := &rfb{conn: conn}
	version := r.read(12)
	if r.err == nil && !bytes.HasPrefix(version, []byte("RFB 003.")) {
		return nil, fmt.Errorf("the screen speaks %q", version)
	}
	r.write([]byte("RFB 003.008\n"))
	if kinds := r.read(int(r.number(1))); r.err == nil && !bytes.Contains(kinds, []byte{1}) {
		return nil, fmt.Errorf("the screen wants one of the authentications %v", kinds)
	}
	r.write([]byte{1}) // none
	if result := r.number(4); r.err == nil && result != 0 {
		return nil, errors.New("the screen refuses")
	}
	r.write([]byte{1}) // others may look too
	width, height := uint16(r.number(2)), uint16(r.number(2))
	format := r.read(16)
	r.read(int(r.number(4))) // its name
	if r.err == nil && format[0] != 32 {
		return nil, fmt.Errorf("the screen has %d bits for a pixel", format[0])
	}
	r.write([]byte{2, 0, 0, 1, 0, 0, 0, 0}) // raw only
	request := []byte{3, 0, 0, 0, 0, 0}     // all of it
	request = binary.BigEndian.AppendUint16(request, width)
	r.write(binary.BigEndian.AppendUint16(request, height))
	screen := make([]byte, int(width)*int(height)*4)
	for filled := 0; filled < len(screen) && r.err == nil; {
		if kind := r.number(1); r.err == nil && kind != 0 {
			return nil, fmt.Errorf("the screen sent a message %d, want a frame", kind)
		}
		r.read(1)
		for range r.number(2) {
			x, y, w, h := int(r.number(2)), int(r.number(2)), int(r.number(2)), int(r.number(2))
			if encoding := r.number(4); r.err == nil && (encoding != 0 || x+w > int(width) || y+h > int(height)) {
				return nil, fmt.Errorf("the screen sent %dx%d at %d,%d with encoding %d", w, h, x, y, encoding)
			}
			for line := range h {
				if r.err != nil {
					break
				}
				copy(screen[((y+line)*int(width)+x)*4:], r.read(w*4))
			}
			filled += w * h * 4
		}
	}
	return screen, r.err
}

// rfb reads and writes until something fails.
type rfb struct {
	conn net.Conn
	err  error
}

func (r *rfb) read(n int) []byte {
	data := make([]byte, n)
	if r.err == nil {
		_, r.err = io.ReadFull(r.conn, data)
	}
	return data
}

func (r *rfb) number(bytes int) uint32 {
	var all [4]byte
	copy(all[4-bytes:], r.read(bytes))
	return binary.BigEndian.Uint32(all[:])
}

func (r *rfb) write(data []byte) {
	if r.err == nil {
		_, r.err = r.conn.Write(data)
	}
}
