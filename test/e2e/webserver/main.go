// Command webserver serves a folder for the end-to-end tests, on port 8080:
//
//	webserver FOLDER RATE  RATE is in bytes a second, 0 for no limit
//
// It serves ranges, and tells when a file was last modified.
//
//	/balanced/FILE  as behind a balancer: each answer is one of two servers', whose entity tags and times differ
//	/digits.gz       512 KiB of the digit 0, and as many of the digit 1, compressed in a member each, with zeros behind them, as a tape pads
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "webserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: webserver FOLDER RATE")
	}
	rate, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("read rate: %w", err)
	}
	files := http.NewServeMux()
	files.Handle("/", http.FileServer(http.Dir(args[0])))
	files.Handle("/balanced/", http.StripPrefix("/balanced", &balanced{folder: args[0]}))
	files.HandleFunc("/digits.gz", digits)
	return http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Range"))
		if rate > 0 {
			w = &slow{ResponseWriter: w, rate: rate}
		}
		files.ServeHTTP(w, r)
	}))
}

// balanced serves files as two servers in turn.
type balanced struct {
	folder string
	asked  atomic.Int64
}

func (b *balanced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, err := http.Dir(b.folder).Open(r.URL.Path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	server := b.asked.Add(1) % 2
	w.Header().Set("ETag", fmt.Sprintf(`"server-%d"`, server))
	http.ServeContent(w, r, filepath.Base(r.URL.Path), time.Unix(1_700_000_000+server, 0), f)
}

// digits writes a raw disk that is compressed in two members.
func digits(w http.ResponseWriter, r *http.Request) {
	var packed bytes.Buffer
	for _, digit := range []string{"0", "1"} {
		member := gzip.NewWriter(&packed)
		fmt.Fprint(member, strings.Repeat(digit, 512<<10)) // to memory
		_ = member.Close()
	}
	packed.Write(make([]byte, 1000))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(packed.Bytes()))
}

// slow bounds the rate of one answer.
type slow struct {
	http.ResponseWriter
	rate int
}

func (s *slow) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		part := p[:min(len(p), max(s.rate/10, 1))]
		n, err := s.ResponseWriter.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
		time.Sleep(time.Duration(float64(n) / float64(s.rate) * float64(time.Second)))
	}
	return written, nil
}
