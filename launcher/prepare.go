package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// inspect answers what only the pod can see.
func inspect(config Config, request control.InspectRequest) control.InspectReply {
	reply := control.InspectReply{OverlayDirect: diskimage.DirectWorks(config.OverlayDir)}
	if request.Kernel != nil {
		reply.Kernel = findKernel(config.KernelDir, *request.Kernel)
	}
	for _, d := range request.ContainerDisks {
		// The volume's name is one of the pod's, and no path.
		root := filepath.Join(config.ImageDir, filepath.Base(d.Volume))
		facts, err := diskimage.Find(root, d.Path)
		facts.Path = filepath.Join(root, facts.Path)
		if err != nil {
			facts = qemuargs.ImageFacts{Error: err.Error()}
		}
		reply.ContainerDisks = append(reply.ContainerDisks, facts)
	}
	for _, c := range request.Claims {
		var facts qemuargs.VolumeFacts
		var err error
		if c.Block {
			facts, err = diskimage.InspectBlock(filepath.Join(config.BlockDir, filepath.Base(c.Volume)), c.ReadOnly)
		} else {
			facts, err = diskimage.InspectVolume(filepath.Join(config.ClaimDir, filepath.Base(c.Volume)), cmp.Or(c.File, layout.ClaimDisk), c.ReadOnly)
		}
		if err != nil {
			facts = qemuargs.VolumeFacts{Error: err.Error()}
		}
		reply.Claims = append(reply.Claims, facts)
	}
	return reply
}

// findKernel finds the files of a kernel in its image volume.
func findKernel(root string, files control.KernelFiles) *qemuargs.KernelFacts {
	facts := &qemuargs.KernelFacts{}
	for _, f := range []struct {
		name string
		into *string
	}{{files.Kernel, &facts.Path}, {files.Initrd, &facts.Initrd}} {
		if f.name == "" {
			continue
		}
		path, err := diskimage.FindFile(root, f.name)
		if err != nil {
			return &qemuargs.KernelFacts{Error: err.Error()}
		}
		*f.into = filepath.Join(root, path)
	}
	return facts
}

// diskInterval is how often a disk that is in use is looked at again.
const diskInterval = 250 * time.Millisecond

// prepare makes the files that QEMU opens, and opens those that it inherits.
func prepare(ctx context.Context, config Config, request *control.StartRequest) (map[string]*os.File, error) {
	if arch := request.Machine.Arch; arch != qemuargs.AMD64 {
		return nil, fmt.Errorf("prepare a machine of architecture %q: QEMU here is for %s", arch, qemuargs.AMD64)
	}
	if err := makeFiles(config, request); err != nil {
		return nil, err
	}
	return openVolumes(ctx, config, &request.Machine)
}

// openVolumes opens the images in volumes, which QEMU inherits, by name.
func openVolumes(ctx context.Context, config Config, m *qemuargs.Machine) (map[string]*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, config.DiskPatience)
	defer cancel()
	files := map[string]*os.File{}
	for _, i := range m.Inherits() {
		if i.Kind != qemuargs.InheritedDisk {
			continue
		}
		d := &m.Disks[slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == i.Name })]
		f, err := openWhenFree(ctx, config.Log, d)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("open disk %s: %w", d.Name, err)
		}
		files[i.String()] = f
		if d.Image.Direct {
			// QEMU 9.1 and newer take a descriptor of an fdset only if it is as they would open it.
			if err := diskimage.SetDirect(f); err != nil {
				closeAll(files)
				return nil, fmt.Errorf("open disk %s: %w", d.Name, err)
			}
		}
	}
	return files, nil
}

// openWhenFree opens a disk's image, and waits for it while something else has
// it. At the end of that the image of a file is opened all the same: QEMU's own
// lock decides, and QEMU says it best.
func openWhenFree(ctx context.Context, log *slog.Logger, d *qemuargs.Disk) (*os.File, error) {
	tick := time.NewTicker(diskInterval)
	defer tick.Stop()
	for waits := false; ; waits = true {
		f, err := openVolume(d)
		inUse := err
		if err == nil {
			inUse = diskimage.Free(f, d.ReadOnly || d.Overlay != nil)
		}
		if !errors.Is(inUse, diskimage.ErrInUse) || ctx.Err() != nil {
			return f, err
		}
		if f != nil {
			f.Close()
		}
		if !waits {
			log.Info("waiting for a disk", "disk", d.Name, "because", inUse.Error())
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func openVolume(d *qemuargs.Disk) (*os.File, error) {
	readOnly := d.ReadOnly || d.Overlay != nil
	if d.Image.Volume == qemuargs.BlockVolume {
		return diskimage.OpenBlock(d.Image.Path, readOnly)
	}
	return diskimage.OpenVolume(filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path), readOnly)
}

func closeAll(files map[string]*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func makeFiles(config Config, request *control.StartRequest) error {
	for _, d := range request.Machine.Disks {
		var err error
		switch {
		case d.Overlay != nil:
			err = diskimage.Create(d.Overlay.Path, d.Overlay.VirtualSize)
		case d.Image.Create > 0 && d.Image.Volume != "":
			err = diskimage.CreateVolume(filepath.Dir(d.Image.Path), filepath.Base(d.Image.Path), d.Image.Create)
		case d.Image.Create > 0:
			err = diskimage.Create(d.Image.Path, d.Image.Create)
		}
		if err != nil {
			return fmt.Errorf("make image of disk %s: %w", d.Name, err)
		}
	}
	for _, seed := range request.CloudInit {
		if err := makeSeed(config.SecretDir, seed, seedPath(&request.Machine, seed.Volume)); err != nil {
			return err
		}
	}
	return nil
}

// seedPath is where the machine expects the seed of a volume.
func seedPath(m *qemuargs.Machine, volume string) string {
	for _, d := range m.Disks {
		if d.Name == volume {
			return d.Image.Path
		}
	}
	return layout.CloudInit(volume)
}

// serveDHCP starts a DHCP server on each of the handler's sockets, and takes them.
func (l *launcher) serveDHCP() error {
	servers, search := resolver(l.ResolvConf)
	for _, d := range l.start.DHCP {
		lease := d.Lease
		if len(lease.DNS) == 0 {
			lease.DNS = servers
		}
		if len(lease.SearchDomains) == 0 {
			lease.SearchDomains = withService(search, d.Service)
		}
		if err := lease.Check(); err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
		socket := l.files[control.DHCPFile(d.NIC)]
		delete(l.files, control.DHCPFile(d.NIC))
		conn, err := net.FilePacketConn(socket)
		socket.Close()
		if err != nil {
			return fmt.Errorf("serve DHCP to %s: %w", d.NIC, err)
		}
		l.leases = append(l.leases, dhcp.Serve(conn, lease, l.Log))
	}
	return nil
}

// withService puts a Service's full domain before the pod's search domains,
// one of which is that of all Services of its namespace.
func withService(search []string, service string) []string {
	_, namespace, ok := strings.Cut(service, ".")
	if !ok {
		return search
	}
	for _, domain := range search {
		if cluster, ok := strings.CutPrefix(domain, namespace+"."); ok {
			return append([]string{service + "." + cluster}, search...)
		}
	}
	return search
}

// maxResolvConf is more than any pod has, in bytes.
const maxResolvConf = 64 << 10

// resolver reads the pod's name servers and search domains. What cannot be
// told to a guest over DHCPv4, IPv6 servers for one, is left out.
func resolver(path string) (servers []netip.Addr, search []string) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxResolvConf {
		return nil, nil
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && a.Is4() {
				servers = append(servers, a)
			}
		case "search":
			search = nil
			for _, domain := range fields[1:] {
				if domain != "." {
					search = append(search, strings.TrimSuffix(domain, "."))
				}
			}
		}
	}
	return servers, search
}
