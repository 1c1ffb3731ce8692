// Command virt-importer fills the disk of a DataVolume, and ends; or it serves a claim's disk to the pod that
// copies it. It is what a pod of virt-controller's runs: package importer has the contract.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/fill"
	"github.com/kubeqemu/kubeqemu/internal/importer/peer"
	"github.com/kubeqemu/kubeqemu/internal/importer/remote"
	"github.com/kubeqemu/kubeqemu/internal/importer/serve"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// heap is where the collector begins to work hard. The blocks of the source take most of it.
	heap = 32 << 20
	// maxMessage is how long the reason for the end may be.
	maxMessage = 1 << 10
	// reportInterval is the time between two lines about the progress in the log.
	reportInterval = 10 * time.Second
	// stopTimeout bounds the wait for answers at the end: the sender of an image waits for one.
	stopTimeout = 3 * time.Second
)

// program is what the flags say.
type program struct {
	fill.Config
	file, device, image, termination, listen string
	imageSocket                              string
	claimFile, claimDevice, peerListen       string
}

func main() {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(heap)
	p := program{}
	flag.StringVar(&p.file, "disk", importer.DiskFile, "`file` that is the disk, on a claim of mode Filesystem")
	flag.StringVar(&p.device, "device", importer.DiskDevice, "`device` that is the disk, of a claim of mode Block")
	flag.StringVar(&p.Certificates, "certificates", importer.CertificatesFolder, "`folder` with certificates of authorities")
	flag.StringVar(&p.Credentials, "credentials", importer.CredentialsFolder, "`folder` with a user and a password")
	flag.StringVar(&p.Headers, "headers", importer.HeadersFolder, "`folder` with folders of secret headers")
	flag.StringVar(&p.image, "image", importer.ImageFolder, "`folder` with the files of a container image")
	flag.StringVar(&p.imageSocket, "image-socket", layout.ImageSocket(layout.ImageDir, importer.ImageName),
		"`socket` of the container that hands out the image's disk, where there is no such folder")
	flag.StringVar(&p.claimFile, "claim", importer.ClaimFile, "`file` that is served to the peer, of a claim of mode Filesystem")
	flag.StringVar(&p.claimDevice, "claim-device", importer.ClaimDevice, "`device` that is served to the peer, of a claim of mode Block")
	flag.StringVar(&p.peerListen, "peer", net.JoinHostPort("", strconv.Itoa(importer.PeerPort)), "`address` to serve the peer at")
	flag.StringVar(&p.Work, "work", os.TempDir(), "`folder` for a socket")
	flag.StringVar(&p.QEMUImg, "qemu-img", "/usr/bin/qemu-img", "`path` of qemu-img")
	flag.StringVar(&p.termination, "termination-log", layout.TerminationLog, "`file` that gets the reason for a failure")
	flag.StringVar(&p.listen, "progress", net.JoinHostPort("127.0.0.1", strconv.Itoa(importer.Port)), "`address` to serve the progress at, and what else virt-controller alone may ask and tell")
	flag.Int64Var(&p.Segment, "segment", 0, "how many `bytes` of the disk are filled before that is written down; 0 means 512 MiB")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "virt-importer: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	p.Log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := p.run(ctx); err != nil {
		text := message(ctx, p.Task, err)
		p.Log.Error("the task failed", "error", text)
		if err := writeTermination(p.termination, text); err != nil {
			p.Log.Error("write termination message", "error", err)
		}
		os.Exit(1)
	}
}

// run does the task of the environment.
func (p *program) run(ctx context.Context) error {
	began := time.Now()
	if err := json.Unmarshal([]byte(os.Getenv(importer.TaskVariable)), &p.Task); err != nil {
		return fmt.Errorf("read the task in %s: %w", importer.TaskVariable, err)
	}
	if p.Task.Serve != nil {
		return p.serveClaim(ctx, began)
	}
	return p.fillDisk(ctx, began)
}

// fillDisk fills the disk.
func (p *program) fillDisk(ctx context.Context, began time.Time) error {
	p.Disk = p.file
	if p.Task.Target.Block {
		p.Disk = p.device
	}
	var err error
	if p.Node, err = nodeAddresses(os.Getenv(importer.HostAddressesVariable), os.Getenv("KUBERNETES_SERVICE_HOST")); err != nil {
		return err
	}
	routed, err := gateways()
	if err != nil {
		return err
	}
	p.Node = append(p.Node, routed...)
	p.Image = p.openImage
	mux := http.NewServeMux()
	if p.Task.Source.Claim != nil {
		pair, err := peer.New(true)
		if err != nil {
			return err
		}
		pair.Handle(mux)
		p.Peer = pair
	}
	job, err := fill.New(p.Config, began)
	if err != nil {
		return err
	}
	mux.Handle("GET "+importer.ProgressPath, job.Meter)
	if p.Task.Source.Upload != nil {
		mux.Handle("PUT "+importer.UploadPath, job.Upload())
	}
	stop, err := listen(p.listen, mux)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go fill.Report(ctx, job.Meter, p.Log, reportInterval)
	p.Log.Info("the import begins", "source", source(p.Task), "disk", p.Disk, "bytes", p.Task.Target.Bytes)
	if err := job.Run(ctx); err != nil {
		return err
	}
	p.Log.Info("the import is done", "seconds", time.Since(began).Seconds())
	return nil
}

// serveClaim serves the claim's disk until ctx ends.
func (p *program) serveClaim(ctx context.Context, began time.Time) error {
	pair, err := peer.New(false)
	if err != nil {
		return err
	}
	path := p.claimFile
	if p.Task.Serve.Block {
		path = p.claimDevice
	}
	server, err := serve.New(serve.Config{Path: path, Block: p.Task.Serve.Block, Pair: pair, Log: p.Log}, began)
	if err != nil {
		return err
	}
	defer server.Close()
	mux := http.NewServeMux()
	pair.Handle(mux)
	mux.Handle("GET "+importer.ProgressPath, server)
	// The peer's port first: who can ask for the identity can connect.
	listener, err := net.Listen("tcp", p.peerListen)
	if err != nil {
		return fmt.Errorf("serve the peer: %w", err)
	}
	defer listener.Close()
	stop, err := listen(p.listen, mux)
	if err != nil {
		return err
	}
	defer stop()
	p.Log.Info("the claim's disk is served", "disk", path, "bytes", server.Progress().Total)
	return server.Run(ctx, listener)
}

// listen serves what virt-controller asks.
func listen(address string, handler http.Handler) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the progress: %w", err)
	}
	server := &http.Server{
		Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	go server.Serve(listener) // until stop
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			server.Close()
		}
	}, nil
}

// nodeAddresses reads addresses that are separated by commas. Nothing may be missing among them: a source
// at such an address would not be refused.
func nodeAddresses(lists ...string) (addresses []netip.Addr, err error) {
	for _, list := range lists {
		for text := range strings.SplitSeq(list, ",") {
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("read the node's addresses: %w", err)
			}
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

// source names the task's source without its secrets.
func source(task importer.Task) string {
	switch source := task.Source; {
	case source.HTTP != nil:
		return remote.Location(source.HTTP.URL)
	case source.Image != nil:
		return "the container disk"
	case source.Claim != nil:
		return "the claim"
	case source.Upload != nil:
		return "the upload"
	}
	return "blank"
}

// message is what the kubelet reports of an import that failed.
func message(ctx context.Context, task importer.Task, err error) string {
	text := fmt.Sprintf("import %s: %s", source(task), err)
	switch {
	case task.Serve != nil:
		text = fmt.Sprintf("serve the claim: %s", err)
	case ctx.Err() != nil:
		text = fmt.Sprintf("import %s: the importer was told to end; the next one goes on", source(task))
	}
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

// writeTermination writes into the file that the kubelet made. Outside of a pod there is no such file, and
// it makes none.
func writeTermination(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
