package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/cloudinit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/layout"
)

// maxSecretData is more than a Secret holds (1 MiB), in bytes.
const maxSecretData = 1<<20 + 1

// makeSeed writes the volume that cloud-init reads. What is in Secrets comes from
// dir.
func makeSeed(dir string, seed control.CloudInitSeed, path string) error {
	if err := readSecrets(dir, &seed); err != nil {
		return fmt.Errorf("read cloud-init data of volume %s: %w", seed.Volume, err)
	}
	keys, err := readKeys(dir, seed.AccessCredentials)
	if err != nil {
		return fmt.Errorf("read SSH keys for volume %s: %w", seed.Volume, err)
	}
	instance := cloudinit.Instance{ID: seed.InstanceID, UUID: seed.ConfigDriveUUID, Hostname: seed.Hostname, Keys: keys}
	label, files := cloudinit.NoCloudLabel, cloudinit.NoCloud
	if seed.ConfigDriveUUID != "" {
		label, files = cloudinit.ConfigDriveLabel, cloudinit.ConfigDrive
	}
	image, err := cloudinit.Seed(label, files(instance, seed.UserData, seed.NetworkData))
	if err == nil {
		err = os.WriteFile(path, image, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write cloud-init seed %s: %w", seed.Volume, err)
	}
	return nil
}

// readSecrets fills in what is in Secrets. The kubelet's mount leads to a key
// by links of its own, so they are followed: what is in a Secret volume was put
// there by the kubelet.
func readSecrets(dir string, seed *control.CloudInitSeed) error {
	// The volume's name is one of the pod's, and no path.
	volume := filepath.Base(seed.Volume)
	var err error
	if seed.UserDataSecret {
		if seed.UserData, err = readKey(filepath.Join(dir, volume, "user"), layout.UserDataKeys()); err != nil {
			return err
		}
	}
	if seed.NetworkDataSecret {
		seed.NetworkData, err = readKey(filepath.Join(dir, volume, "network"), layout.NetworkDataKeys())
	}
	return err
}

// readKey reads the first of the keys that the Secret in a folder has.
func readKey(dir string, keys []string) ([]byte, error) {
	for _, key := range keys {
		data, err := readSecretFile(filepath.Join(dir, key))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		return data, err
	}
	return nil, fmt.Errorf("the Secret has no key %q", keys[0])
}

func readSecretFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSecretData))
}

// readKeys reads the SSH keys in Secrets: every line of every one of their keys,
// in the order of the keys' names, but comments and what is empty.
func readKeys(dir string, credentials []int) ([]string, error) {
	var keys []string
	for _, number := range credentials {
		folder := layout.AccessCredential(dir, number)
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "..") { // the kubelet's own
				continue
			}
			data, err := readSecretFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(data)) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					keys = append(keys, line)
				}
			}
		}
	}
	return keys, nil
}
