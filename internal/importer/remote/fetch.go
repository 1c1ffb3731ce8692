package remote

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// fetch reads a run of blocks, and takes a connection that breaks up again at the byte where it broke.
func (f *File) fetch(run []*block) {
	todo := cursor{run: run}
	err := f.client.retry(f.ctx, f.client.options.Patience, func() (bool, error) {
		before := todo.position()
		err := f.fetchOnce(&todo)
		return todo.position() > before, err
	})
	if err != nil {
		f.cache.fail(run, fmt.Errorf("read the source: %w", err))
	}
}

// cursor is how far a run is read.
type cursor struct {
	run []*block
	// index is the block that is read, and have how much of it is there.
	index, have int
}

func (c *cursor) position() int64 {
	if c.index == len(c.run) {
		return c.end()
	}
	return c.run[c.index].index*blockSize + int64(c.have)
}

func (c *cursor) end() int64 {
	last := c.run[len(c.run)-1]
	return last.index*blockSize + int64(len(last.data))
}

func (f *File) fetchOnce(todo *cursor) error {
	want := span{todo.position(), todo.end()}
	a, err := f.again(want)
	if err != nil {
		return err
	}
	defer a.close()
	if err := f.checkRange(a, want); err != nil {
		return err
	}
	for todo.index < len(todo.run) {
		b := todo.run[todo.index]
		n, err := a.body.Read(b.data[todo.have:])
		todo.have += n
		f.cache.count(n)
		if todo.have == len(b.data) {
			if err := f.cache.finish(b); err != nil {
				return err
			}
			todo.index, todo.have = todo.index+1, 0
			continue
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return a.ended()
}

func (c *cache) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received += int64(n)
}

// again asks for a further range. Where the URL that answered first refuses, it asks where the file
// was said to be.
func (f *File) again(want span) (*answer, error) {
	f.cache.mu.Lock()
	at := f.client.settled
	f.cache.mu.Unlock()
	a, err := f.client.get(f.ctx, at, want)
	if err != nil || *at == *f.client.origin || a.StatusCode < 400 || a.StatusCode >= 500 {
		return a, err
	}
	a.close()
	if a, err = f.client.get(f.ctx, f.client.origin, want); err != nil {
		return nil, err
	}
	if a.StatusCode == http.StatusPartialContent {
		f.cache.mu.Lock()
		f.client.settled = a.at
		f.cache.mu.Unlock()
	}
	return a, nil
}

// Unchanged asks once more whether the file is still what it was when it was opened. It returns an error
// that wraps ErrChanged if it is not. The file must have Ranges.
func (f *File) Unchanged() error {
	err := f.client.retry(f.ctx, f.client.options.Patience, func() (bool, error) {
		want := span{0, 1}
		a, err := f.again(want)
		if err != nil {
			return false, err
		}
		defer a.close()
		return false, f.checkRange(a, want)
	})
	if err != nil {
		return fmt.Errorf("look at the source again: %w", err)
	}
	return nil
}

// Ask reads what the server says at another path, of at most so many bytes, about the version of the file that was
// opened. An error that wraps ErrChanged says that the file is another by now.
func (f *File) Ask(path string, query url.Values, most int64) (text []byte, err error) {
	at := *f.client.origin
	at.Path, at.RawQuery = path, query.Encode()
	err = f.client.retry(f.ctx, f.client.options.Patience, func() (bool, error) {
		text, err = f.askOnce(&at, most)
		return false, err
	})
	if err != nil {
		return nil, fmt.Errorf("ask about the source: %w", err)
	}
	return text, nil
}

func (f *File) askOnce(at *url.URL, most int64) ([]byte, error) {
	a, err := f.client.get(f.ctx, at, span{})
	if err != nil {
		return nil, err
	}
	defer a.close()
	switch {
	case a.StatusCode != http.StatusOK:
		return nil, a.refusal()
	case validator(a.Header) != f.Validator:
		return nil, final(ErrVersions)
	}
	text, err := io.ReadAll(io.LimitReader(a.body, most+1))
	if err == nil && int64(len(text)) > most {
		err = final(fmt.Errorf("the server answers with more than %d bytes", most))
	}
	return text, err
}

// checkRange says whether an answer is the range that was asked for, of the file that was opened.
func (f *File) checkRange(a *answer, want span) error {
	switch a.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK:
		return final(fmt.Errorf("%w: the server gives no ranges any more", ErrChanged))
	case http.StatusRequestedRangeNotSatisfiable:
		return final(fmt.Errorf("%w: it is shorter than before", ErrChanged))
	default:
		return a.refusal()
	}
	got, size, err := contentRange(a.Header)
	switch {
	case err != nil:
		return final(err)
	case size != f.Size:
		return final(fmt.Errorf("%w: it has %d bytes and had %d", ErrChanged, size, f.Size))
	case validator(a.Header) != f.Validator:
		return final(ErrVersions)
	case got != want, a.ContentLength >= 0 && a.ContentLength != want.to-want.from:
		return final(errors.New("the server answers with another range than it was asked for"))
	}
	return nil
}
