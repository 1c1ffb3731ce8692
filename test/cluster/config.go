package cluster

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed config
var configFiles embed.FS

// Paths as a node's processes see them, whatever the paths outside are. They are short,
// because a unix socket's path has at most 107 bytes.
const (
	innerBin   = "/run/cluster/bin"
	innerNode  = "/run/cluster/node"
	innerLogs  = "/run/cluster/logs"
	innerFakes = "/run/cluster/sysctl"
	criSocket  = "/run/containerd/containerd.sock"
)

func render(name string, data any) ([]byte, error) {
	t, err := template.ParseFS(configFiles, "config/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	var out bytes.Buffer
	if err := t.Option("missingkey=error").Execute(&out, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return out.Bytes(), nil
}

func (p Plan) kubeconfig(user string, ca, client keyPair) ([]byte, error) {
	b64 := base64.StdEncoding.EncodeToString
	return render("kubeconfig.yaml", map[string]string{
		"Cluster": p.Name, "Server": p.APIURL(), "User": user,
		"CA": b64(ca.certPEM), "Cert": b64(client.certPEM), "Key": b64(client.keyPEM),
	})
}

// nodeConfigs are a node's configuration files by their path in its folder.
func (p Plan) nodeConfigs(n NodePlan, restrictOOMScore bool) (map[string][]byte, error) {
	data := map[string]any{
		"Socket": criSocket, "Bin": innerBin, "PauseImage": pauseImage, "Node": innerNode, "RestrictOOMScore": restrictOOMScore,
		"Address": n.Address, "Cgroup": n.Cgroup, "PodNetworks": n.PodNetworks, "ServiceAPI": p.ServiceAPI(), "OwnCPUs": p.OwnCPUs,
	}
	files := map[string][]byte{"containerd.toml": nil, "kubelet.yaml": nil, "cni/10-pods.conflist": nil}
	for file := range files {
		source := filepath.Base(file)
		switch {
		case source == "10-pods.conflist":
			source = "cni.conflist"
		case source == "containerd.toml" && p.Containerd1:
			source = "containerd-1.toml"
		}
		text, err := render(source, data)
		if err != nil {
			return nil, err
		}
		files[file] = text
	}
	return files, nil
}

func (p Plan) writeNodeConfigs(restrictOOMScore bool) error {
	for _, n := range p.Nodes {
		files, err := p.nodeConfigs(n, restrictOOMScore)
		if err != nil {
			return err
		}
		for name, text := range files {
			file := filepath.Join(p.nodeDir(n), name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
