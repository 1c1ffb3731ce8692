// Command webserver serves a folder for the end-to-end tests, on port 8080:
//
//	webserver FOLDER RATE  RATE is in bytes a second, 0 for no limit
//
// It serves ranges, and tells when a file was last modified.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
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
	files := http.FileServer(http.Dir(args[0]))
	return http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Range"))
		if rate > 0 {
			w = &slow{ResponseWriter: w, rate: rate}
		}
		files.ServeHTTP(w, r)
	}))
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
