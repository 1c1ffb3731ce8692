package guestagent

import (
	"context"
	"net"
	"net/netip"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// Bounds of what is taken of an answer: of texts in bytes, of lists in elements.
const (
	maxName      = 256 // host names have 255 at most, interfaces in Linux 15
	maxText      = 512
	maxPath      = 1024
	maxCommands  = 256
	maxLinks     = 256
	maxAddresses = 8 // of one interface
	maxUsers     = 64
	maxSystems   = 64
	maxDisks     = 8 // below one file system
)

// Ping finds out whether the agent answers.
func (c *Client) Ping(ctx context.Context) error { return c.do(ctx, "guest-ping", nil, nil) }

// Info returns what the agent is and can do.
func (c *Client) Info(ctx context.Context) (control.AgentInfo, error) {
	data, err := c.ask(ctx, request{Execute: "guest-info"}, answerTimeout)
	if err != nil {
		return control.AgentInfo{}, err
	}
	return parseInfo(data)
}

// OS returns what the guest's operating system is.
func (c *Client) OS(ctx context.Context) (control.GuestOS, error) {
	var said struct {
		Name          string `json:"name"`
		KernelRelease string `json:"kernel-release"`
		Version       string `json:"version"`
		PrettyName    string `json:"pretty-name"`
		VersionID     string `json:"version-id"`
		KernelVersion string `json:"kernel-version"`
		Machine       string `json:"machine"`
		ID            string `json:"id"`
	}
	if err := c.do(ctx, "guest-get-osinfo", nil, &said); err != nil {
		return control.GuestOS{}, err
	}
	return control.GuestOS{Name: clip(said.Name, maxName), KernelRelease: clip(said.KernelRelease, maxName), Version: clip(said.Version, maxName),
		PrettyName: clip(said.PrettyName, maxName), VersionID: clip(said.VersionID, maxName), KernelVersion: clip(said.KernelVersion, maxName),
		Machine: clip(said.Machine, maxName), ID: clip(said.ID, maxName)}, nil
}

// Hostname returns the guest's host name.
func (c *Client) Hostname(ctx context.Context) (string, error) {
	var said struct {
		Name string `json:"host-name"`
	}
	err := c.do(ctx, "guest-get-host-name", nil, &said)
	return clip(said.Name, maxName), err
}

// Timezone returns the name of the guest's time zone, such as CET.
func (c *Client) Timezone(ctx context.Context) (string, error) {
	var said struct {
		Zone string `json:"zone"`
	}
	err := c.do(ctx, "guest-get-timezone", nil, &said)
	return clip(said.Zone, maxName), err
}

// Interfaces returns the guest's network interfaces, without its loopback.
func (c *Client) Interfaces(ctx context.Context) ([]control.GuestInterface, error) {
	said, err := doList[link](ctx, c, "guest-network-get-interfaces", maxLinks)
	return interfaces(said), err
}

// Users returns who is logged in.
func (c *Client) Users(ctx context.Context) ([]control.GuestUser, error) {
	type user struct {
		Name      string  `json:"user"`
		Domain    string  `json:"domain"`
		LoginTime float64 `json:"login-time"`
	}
	said, err := doList[user](ctx, c, "guest-get-users", maxUsers)
	var out []control.GuestUser
	for _, u := range said {
		out = append(out, control.GuestUser{Name: clip(u.Name, maxName), Domain: clip(u.Domain, maxName), LoginTime: u.LoginTime})
	}
	return out, err
}

// FileSystems returns what is mounted in the guest and lies on disks.
func (c *Client) FileSystems(ctx context.Context) ([]control.GuestFileSystem, error) {
	said, err := doList[fileSystem](ctx, c, "guest-get-fsinfo", maxSystems)
	var out []control.GuestFileSystem
	for _, f := range said {
		out = append(out, f.taken())
	}
	return out, err
}

// link is an interface as the agent says it.
type link struct {
	Name      string        `json:"name"`
	MAC       string        `json:"hardware-address"`
	Addresses few[ipString] `json:"ip-addresses"`
}

type ipString struct {
	Address string `json:"ip-address"`
}

func interfaces(said []link) []control.GuestInterface {
	var out []control.GuestInterface
	for _, l := range said {
		i := control.GuestInterface{Name: clip(l.Name, maxName)}
		if mac, err := net.ParseMAC(clip(l.MAC, maxName)); err == nil && len(mac) == 6 {
			i.MAC = mac.String()
		}
		loopback := i.Name == "lo"
		for _, a := range l.Addresses {
			ip, err := netip.ParseAddr(clip(a.Address, maxName))
			if err != nil {
				continue
			}
			ip = ip.WithZone("").Unmap()
			loopback = loopback || ip.IsLoopback()
			if ip.IsGlobalUnicast() && len(i.Addresses) < maxAddresses {
				i.Addresses = append(i.Addresses, ip.String())
			}
		}
		if !loopback {
			out = append(out, i)
		}
	}
	return out
}

type fileSystem struct {
	Name       string       `json:"name"`
	MountPoint string       `json:"mountpoint"`
	Type       string       `json:"type"`
	UsedBytes  int64        `json:"used-bytes"`
	TotalBytes int64        `json:"total-bytes"`
	Disks      few[sysDisk] `json:"disk"`
}

type sysDisk struct {
	Serial  string `json:"serial"`
	BusType string `json:"bus-type"`
}

func (f fileSystem) taken() control.GuestFileSystem {
	out := control.GuestFileSystem{Name: clip(f.Name, maxName), MountPoint: clip(f.MountPoint, maxPath), Type: clip(f.Type, maxName),
		UsedBytes: max(f.UsedBytes, 0), TotalBytes: max(f.TotalBytes, 0)}
	for _, d := range f.Disks[:min(len(f.Disks), maxDisks)] {
		out.Disks = append(out.Disks, control.GuestDisk{Serial: clip(d.Serial, maxName), BusType: clip(d.BusType, maxName)})
	}
	return out
}
