package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
)

// Bounds of an image's content.
const (
	maxBytes   = 256 << 30
	maxEntries = 1 << 17
	maxLayers  = 1 << 10

	maxName       = 4096 // bytes of a path in the image, as Linux takes at most (PATH_MAX)
	maxComponents = 128  // names in a path
)

// Names of whiteouts (image-spec, layer.md): an entry that hides another of lower layers, and
// one that hides all that lower layers have in its folder.
const (
	whiteout = ".wh."
	opaque   = whiteout + whiteout + ".opq"
)

// unpack unpacks the layers of an image into a new folder. what names the work in reports.
func (c *Cache) unpack(ctx context.Context, image content, folder, what string) error {
	sums, err := image.sums()
	if err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	count := &counter{ctx: ctx, report: c.report, progress: Progress{What: what}}
	for _, l := range image.layers {
		count.progress.Total += l.size
	}
	u := &unpacker{root: root, bytes: maxBytes, entries: maxEntries}
	for i, l := range image.layers {
		if err := u.layer(ctx, count.counted(l), sums[i]); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return nil
}

// unpacker puts layers over each other in a folder. os.Root keeps it inside the folder,
// whatever names and links a layer has.
type unpacker struct {
	root    *os.Root
	bytes   int64 // how many may follow
	entries int   // likewise
	// own are the paths that the layer itself has: its whiteouts hide only what lower layers
	// have.
	own map[string]bool
}

// layer unpacks a layer, and checks that it is what the configuration names.
func (u *unpacker) layer(ctx context.Context, stored layer, want v1.Hash) error {
	r, err := stored.plain()
	if err != nil {
		return fmt.Errorf("open it: %w", err)
	}
	defer r.Close()
	hash := sha256.New()
	in := io.TeeReader(r, hash)
	u.own = map[string]bool{}
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		if err := u.entry(header, endingReader{ctx, archive}); err != nil {
			return fmt.Errorf("unpack %s: %w", shown("/"+clean(header.Name)), err)
		}
	}
	// The archive ends before the stream does, which may be padded.
	if _, err := io.CopyN(io.Discard, in, u.bytes); err != io.EOF {
		return fmt.Errorf("read its end: %w", errors.Join(err, errTooLarge))
	}
	if got := hex.EncodeToString(hash.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return fmt.Errorf("its content is sha256:%s, and the image's configuration names %s", got, want)
	}
	return nil
}

var errTooLarge = fmt.Errorf("the image has more than %d GiB or %d files and folders", maxBytes>>30, maxEntries)

// clean is a path in the image without a leading slash, which leads nowhere out of it.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

var errLongName = fmt.Errorf("its path has more than %d bytes or %d names", maxName, maxComponents)

// checkName refuses a path that is too long to be worked with.
func checkName(name string) error {
	if len(name) > maxName || strings.Count(name, "/") >= maxComponents {
		return errLongName
	}
	return nil
}

// keep notes that the layer itself has a path, and counts the folders above it that no entry
// has named before: the unpacker makes them.
func (u *unpacker) keep(name string) error {
	u.own[name] = true
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		if u.own[p] {
			return nil // and so are all above it
		}
		if u.entries--; u.entries < 0 {
			return errTooLarge
		}
		u.own[p] = true
	}
	return nil
}

// checkType refuses an entry of a tar type that stands for nothing that is known.
func checkType(kind byte) error {
	switch kind {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeDir, tar.TypeLink, tar.TypeSymlink,
		tar.TypeChar, tar.TypeBlock, tar.TypeFifo, tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("its tar type is %q, which is unknown: pack it as a regular file", kind)
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	if u.entries--; u.entries < 0 || header.Size > u.bytes {
		return errTooLarge
	}
	if err := checkType(header.Typeflag); err != nil {
		return err
	}
	name := clean(header.Name)
	if name == "" || header.Typeflag == tar.TypeXGlobalHeader { // a header of the archive is no file
		return nil
	}
	if err := checkName(name); err != nil {
		return err
	}
	folder, base := path.Split(name)
	folder = clean(folder)
	err := u.change(header, folder, base, content)
	if err != nil && u.behindAbsolute(folder) {
		return nil
	}
	return err
}

// change puts an entry into a folder, or removes what the entry hides.
func (u *unpacker) change(header *tar.Header, folder, base string, content io.Reader) error {
	name := path.Join(folder, base)
	if base == opaque {
		return u.hideAll(folder)
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return u.hide(path.Join(folder, hidden), hidden)
	}
	if folder != "" {
		if err := u.root.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := u.keep(name); err != nil {
		return err
	}
	if header.Typeflag == tar.TypeDir {
		if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
			return nil
		}
	}
	if err := u.root.RemoveAll(name); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.root.Mkdir(name, 0o755)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse: // package tar gives zeros for a hole
		return u.file(name, content)
	case tar.TypeLink:
		return u.root.Link(clean(header.Linkname), name)
	case tar.TypeSymlink:
		return u.root.Symlink(header.Linkname, name)
	}
	return nil // no disk and no kernel is a device or a FIFO
}

// maxLinks bounds the links on the way to a file, as Linux does (path_resolution(7)).
const maxLinks = 40

// behindAbsolute says whether the way to a folder leads through an absolute link, such as
// /var/run to /run. os.Root refuses such a way. No disk and no kernel is lost behind the link:
// the launcher follows no link when it looks for them.
func (u *unpacker) behindAbsolute(folder string) bool {
	for range maxLinks {
		link, rest, ok := u.firstLink(folder)
		if !ok {
			return false
		}
		to, err := u.root.Readlink(link)
		if err != nil || path.IsAbs(to) {
			return err == nil
		}
		folder = clean(path.Join(path.Dir(link), to, rest))
	}
	return false
}

// firstLink is the first link on the way to a folder, and the way from there.
func (u *unpacker) firstLink(folder string) (link, rest string, ok bool) {
	for i := range len(folder) + 1 {
		if i < len(folder) && folder[i] != '/' {
			continue
		}
		info, err := u.root.Lstat(path.Join(".", folder[:i]))
		if err != nil {
			return "", "", false
		}
		if info.Mode().Type() == fs.ModeSymlink {
			return folder[:i], folder[i:], true
		}
	}
	return "", "", false
}

// hide removes what lower layers have at a path.
func (u *unpacker) hide(name, base string) error {
	if base == "" || base == "." || base == ".." {
		return errors.New("it is a whiteout without a name")
	}
	return u.hideLower(name)
}

// hideLower removes what lower layers have at a path. A folder that the layer itself has too
// stays, and what the layer has in it.
func (u *unpacker) hideLower(name string) error {
	if !u.own[name] {
		return u.root.RemoveAll(name)
	}
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return nil
	}
	return u.hideAll(name)
}

// hideAll removes what lower layers have in a folder, once: no layer brings it back.
func (u *unpacker) hideAll(folder string) error {
	mark := path.Join(folder, opaque)
	if u.own[mark] {
		return nil
	}
	dir, err := u.root.Open(path.Join(".", folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	u.own[mark] = true
	for _, base := range names {
		if err := u.hideLower(path.Join(folder, base)); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) file(name string, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	size, err := copySparse(f, content)
	u.bytes -= size
	// After a crash of the machine a file that was renamed with its folder may else be empty.
	return errors.Join(err, f.Sync(), f.Close())
}

// sparseBlock is the unit of a hole, in bytes.
const sparseBlock = 64 << 10

// copySparse copies, and leaves holes for zeros: a raw disk is mostly zeros.
func copySparse(to *os.File, from io.Reader) (size int64, err error) {
	block, zeros := make([]byte, sparseBlock), make([]byte, sparseBlock)
	for {
		n, err := io.ReadFull(from, block)
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := to.WriteAt(block[:n], size); err != nil {
				return size, err
			}
		}
		size += int64(n)
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return size, to.Truncate(size)
		default:
			return size, err
		}
	}
}

// endingReader ends the reading of a file with the context. A hole of a sparse file is read
// without reading of the layer.
type endingReader struct {
	ctx  context.Context
	file io.Reader
}

func (r endingReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.file.Read(p)
}

// counter counts the bytes that are read of layers as they are stored, and ends the reading
// with the context.
type counter struct {
	ctx      context.Context
	report   func(Progress)
	progress Progress
}

// counted is a layer whose bytes are counted.
func (c *counter) counted(l layer) layer {
	return layer{l.size, func() (io.ReadCloser, error) {
		r, err := l.open()
		if err != nil {
			return nil, err
		}
		return countedReader{r, c}, nil
	}}
}

type countedReader struct {
	io.ReadCloser
	*counter
}

func (r countedReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.ReadCloser.Read(p)
	r.progress.Done += int64(n)
	r.report(r.progress)
	return n, err
}
