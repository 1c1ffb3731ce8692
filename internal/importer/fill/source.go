package fill

import (
	"bufio"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
)

const (
	// maxSecret bounds a file of a Secret or ConfigMap, which has 1 MiB at most.
	maxSecret = 1 << 20
	// maxHeaders and maxHeaderBytes bound all headers together.
	maxHeaders     = 64
	maxHeaderBytes = 32 << 10
	maxFolders     = 64
)

// imageBytes is how large the file of an image for a disk may be: a qcow2 image has tables, and may have
// snapshots.
func imageBytes(disk int64) int64 { return disk + disk/2 + 1<<30 }

// options are what the source is read with.
func (j *Import) options() (remote.Options, error) {
	source := j.Task.Source.HTTP
	o := j.Remote
	o.URL, o.MaxSize, o.Addresses.Node, o.OneAnswer = source.URL, imageBytes(j.disk.Bytes), j.Node, j.oneAnswer
	var err error
	if o.Addresses.Forbidden, err = prefixes(j.Task.Forbidden); err != nil {
		return o, err
	}
	if o.Addresses.Permitted, err = prefixes(j.Task.Permitted); err != nil {
		return o, err
	}
	if o.Headers, err = readHeaders(source.Headers, j.Headers, source.SecretHeaders); err != nil {
		return o, err
	}
	if source.Credentials {
		user, err := readFile(filepath.Join(j.Credentials, "accessKeyId"))
		password, err2 := readFile(filepath.Join(j.Credentials, "secretKey"))
		if err := errors.Join(err, err2); err != nil {
			return o, fmt.Errorf("read the credentials: %w", err)
		}
		o.User, o.Password = strings.TrimSpace(string(user)), strings.TrimSpace(string(password))
	}
	if source.Certificates {
		if o.Roots, err = readCertificates(j.Certificates); err != nil {
			return o, err
		}
	}
	return o, nil
}

func prefixes(texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read a block of addresses: %w", err)
		}
		list = append(list, p)
	}
	return list, nil
}

// readFile reads a file that a Secret or a ConfigMap has.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(text) > maxSecret {
		err = fmt.Errorf("%s has more than %d bytes", path, maxSecret)
	}
	return text, err
}

// files are the files of a Secret or a ConfigMap. Others in its folder are Kubernetes' own.
func files(folder string) (paths []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths, nil
}

// readCertificates makes a pool of the system's authorities, if it has any, and those in a folder.
func readCertificates(folder string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	paths, err := files(folder)
	if err != nil {
		return nil, fmt.Errorf("read the certificates: %w", err)
	}
	found := false
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the certificates: %w", err)
		}
		found = pool.AppendCertsFromPEM(text) || found
	}
	if !found {
		return nil, errors.New("read the certificates: the ConfigMap that certConfigMap names has none in PEM")
	}
	return pool, nil
}

// readHeaders makes headers of a Task's lines and of those in folders, which are secret. No error has a
// line in it.
func readHeaders(lines []string, folder string, folders int) (http.Header, error) {
	if folders > maxFolders {
		return nil, fmt.Errorf("read the headers: %d Secrets are too many", folders)
	}
	for i := range folders {
		paths, err := files(filepath.Join(folder, strconv.Itoa(i)))
		if err != nil {
			return nil, fmt.Errorf("read the headers: %w", err)
		}
		for _, path := range paths {
			text, err := readFile(path)
			if err != nil {
				return nil, fmt.Errorf("read the headers: %w", err)
			}
			scanner := bufio.NewScanner(strings.NewReader(string(text)))
			for scanner.Scan() {
				lines = append(lines, scanner.Text())
			}
			if err := scanner.Err(); err != nil {
				return nil, fmt.Errorf("read the headers: %w", err)
			}
		}
	}
	return parseHeaders(lines)
}

func parseHeaders(lines []string) (http.Header, error) {
	headers, count, size := http.Header{}, 0, 0
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !ok || !isHeader(name, value) {
			return nil, errors.New(`read the headers: one is not "Name: value", or is one that the importer sends by itself`)
		}
		headers[name] = append(headers[name], value)
		count, size = count+1, size+len(line)
	}
	if count > maxHeaders || size > maxHeaderBytes {
		return nil, fmt.Errorf("read the headers: %d of %d bytes are too many", count, size)
	}
	return headers, nil
}

// isHeader says whether a header can be sent.
func isHeader(name, value string) bool {
	switch name {
	case "", "Range", "If-Range", "Accept-Encoding", "Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Trailer", "Te":
		return false
	}
	const marks = "!#$%&'*+-.^_`|~"
	token := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(marks, r)
	}
	return strings.IndexFunc(name, func(r rune) bool { return !token(r) }) < 0 &&
		strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0
}
