package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Policy says when a registry is asked.
type Policy string

// Policies, by the names of imagePullPolicy.
const (
	Always       Policy = "Always"
	IfNotPresent Policy = "IfNotPresent"
	Never        Policy = "Never"
)

// errNoRegistry means that a reference names no registry that could be asked.
var errNoRegistry = errors.New("the reference names this machine (localhost) and no registry's port")

// Pull returns the place of an image, and fetches the image from its registry if need be. With
// Always it also mends an image that was damaged in the cache. The credentials are those of docker's configuration.
func (c *Cache) Pull(ctx context.Context, reference string, policy Policy) (Place, error) {
	if id, ok := c.remembered(reference); ok && policy != Always {
		if err := c.checkFiles(id); err != nil {
			return Place{}, fmt.Errorf("find image %q: %w", reference, err)
		}
		return Place{Folder: c.imageFolder(id)}, nil
	}
	if policy == Never {
		return Place{}, fmt.Errorf("find image %q in %s: it was never fetched, and its pull policy is Never", reference, c.Folder)
	}
	folder, err := c.fetch(ctx, reference)
	if err != nil {
		return Place{}, fmt.Errorf("fetch image %q: %w", reference, foreign{err})
	}
	return Place{Folder: folder}, nil
}

func (c *Cache) fetch(ctx context.Context, reference string) (string, error) {
	if first, _, _ := strings.Cut(reference, "/"); first == "localhost" {
		return "", errNoRegistry
	}
	parsed, err := name.ParseReference(reference)
	if err != nil {
		return "", err
	}
	ctx, watch := withStall(ctx, encrypted{transport(), isThisMachine(hostOf(parsed.Context().RegistryStr()))})
	defer watch.end(nil)
	image, err := remote.Image(parsed, remote.WithContext(ctx), remote.WithAuthFromKeychain(impatient{authn.DefaultKeychain}),
		remote.WithTransport(watch), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		return "", explain(ctx, err)
	}
	content, err := contentOf(image)
	if err != nil {
		return "", explain(ctx, err)
	}
	folder, id, err := c.add(ctx, content, "fetch "+reference)
	if err != nil {
		return "", explain(ctx, err)
	}
	return folder, c.remember(reference, id)
}

// contentOf reads the configuration of a registry's image. The layers come when they are read.
func contentOf(image v1.Image) (content, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return content{}, fmt.Errorf("read the image's manifest: %w", err)
	}
	// Package remote reads as many bytes as the manifest names, and without end if they are -1.
	if size := manifest.Config.Size; size < 0 || size > maxManifest {
		return content{}, fmt.Errorf("read the image's configuration: the manifest gives it %d bytes: want at most %d", size, maxManifest)
	}
	if n := len(manifest.Layers); n > maxLayers {
		return content{}, fmt.Errorf("list the image's layers: there are %d: want at most %d", n, maxLayers)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return content{}, fmt.Errorf("read the image's configuration: %w", err)
	}
	layers, err := image.Layers()
	if err != nil {
		return content{}, fmt.Errorf("list the image's layers: %w", err)
	}
	out := content{config: config}
	for _, l := range layers {
		size, err := l.Size()
		if err != nil {
			return content{}, fmt.Errorf("list the image's layers: %w", err)
		}
		out.layers = append(out.layers, layer{size, l.Compressed})
	}
	return out, nil
}

// explain puts why the context has ended in the place of an error that says only that it has.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// stallTimeout is how long a registry may send nothing.
const stallTimeout = time.Minute

// stall speaks to a registry, and ends the context when the registry has sent nothing for
// stallTimeout. It measures only the time in which the registry is waited for: what is read of
// a layer is written to a disk in between, and the disk may be slow.
type stall struct {
	registry http.RoundTripper
	end      context.CancelCauseFunc
}

func withStall(ctx context.Context, registry http.RoundTripper) (context.Context, *stall) {
	ctx, end := context.WithCancelCause(ctx)
	return ctx, &stall{registry, end}
}

// watch begins to wait for the registry.
func (s *stall) watch() *time.Timer {
	return time.AfterFunc(stallTimeout, func() { s.end(fmt.Errorf("the registry has sent nothing for %s", stallTimeout)) })
}

func (s *stall) RoundTrip(request *http.Request) (*http.Response, error) {
	timer := s.watch()
	defer timer.Stop()
	response, err := s.registry.RoundTrip(request)
	if err == nil {
		response.Body = stallBody{response.Body, s}
	}
	return response, err
}

// stallBody is an answer of the registry.
type stallBody struct {
	io.ReadCloser
	stall *stall
}

func (b stallBody) Read(p []byte) (int, error) {
	timer := b.stall.watch()
	defer timer.Stop()
	return b.ReadCloser.Read(p)
}

func transport() http.RoundTripper {
	if t, ok := remote.DefaultTransport.(*http.Transport); ok {
		t = t.Clone()
		t.ResponseHeaderTimeout = stallTimeout
		return t
	}
	return remote.DefaultTransport
}

// encrypted refuses HTTP without TLS, except to this machine for a registry on this machine. Package remote would also try it
// with private addresses. A registry elsewhere may redirect, or name a server for tokens: it must not lead the user's programs and credentials to this
// machine's own servers.
type encrypted struct {
	http.RoundTripper
	// here says that the registry is on this machine.
	here bool
}

func (e encrypted) RoundTrip(request *http.Request) (*http.Response, error) {
	switch {
	case request.URL.Scheme == "https":
	case request.Response != nil && request.Response.Request != nil && request.Response.Request.URL.Scheme == "https":
		return nil, fmt.Errorf("refuse to follow a redirect from %s with TLS to %s without", request.Response.Request.URL.Host, request.URL.Host)
	case !e.here || !isThisMachine(request.URL.Hostname()):
		return nil, fmt.Errorf("refuse to speak to %s without TLS", request.URL.Host)
	}
	return e.RoundTripper.RoundTrip(request)
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

func isThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
