package images

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
)

// claimed is an image whose manifest gives the configuration a size of its own.
type claimed struct {
	v1.Image
	size int64
	read int // how often the configuration was read
}

func (c *claimed) Manifest() (*v1.Manifest, error) {
	m, err := c.Image.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	m.Config.Size = c.size
	return m, nil
}

func (c *claimed) RawConfigFile() ([]byte, error) {
	c.read++
	return c.Image.RawConfigFile()
}

// TestLargeConfigurationIsNotRead: a configuration that the manifest says is large is not read.
func TestLargeConfigurationIsNotRead(t *testing.T) {
	for size, want := range map[int64]bool{maxManifest: true, maxManifest + 1: false, 1 << 40: false, -1: false} {
		image := &claimed{Image: imageOf(t, layerOf(t)), size: size}
		_, err := contentOf(image)
		if (err == nil) != want || (image.read > 0) != want || err != nil && !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%d bytes: read %d times, %v", size, image.read, err)
		}
	}
}

// slow is an answer of a registry, whose every read takes its time or ends with the context.
type slow struct {
	ctx   context.Context
	takes time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	select {
	case <-time.After(s.takes):
		return len(p), nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func (*slow) Close() error { return nil }

// TestSilentRegistryIsGivenUp: the wait for a registry that sends nothing ends. The time that the reader takes
// between two reads, for the disk, does not count.
func TestSilentRegistryIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		registry, disk time.Duration
		want           string
	}{
		"both are fast":        {time.Second, time.Second, ""},
		"the disk is slow":     {time.Second, 2 * stallTimeout, ""},
		"the registry is slow": {2 * stallTimeout, 0, "the registry has sent nothing for 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, watch := withStall(t.Context(), roundTrip(func(r *http.Request) (*http.Response, error) {
					return &http.Response{Body: &slow{r.Context(), c.registry}}, nil
				}))
				defer watch.end(nil)
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://registry.example/v2/", nil)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := watch.RoundTrip(request)
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				for range 100 {
					if _, err = io.ReadFull(answer.Body, make([]byte, 10)); err != nil {
						break
					}
					time.Sleep(c.disk)
				}
				if got := explain(ctx, err); got == nil && c.want != "" || got != nil && got.Error() != c.want {
					t.Errorf("%v, want %q", got, c.want)
				}
			})
		})
	}
}

// TestRegistryThatDoesNotAnswerIsGivenUp: a registry that takes a request and does not answer is given up.
func TestRegistryThatDoesNotAnswerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, watch := withStall(t.Context(), roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}))
		defer watch.end(nil)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://registry.example/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.RoundTrip(request); err == nil || !strings.Contains(explain(ctx, err).Error(), "sent nothing") {
			t.Errorf("%v", err)
		}
	})
}
