package disks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/launcher/cloudinit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
	"github.com/kubeqemu/kubeqemu/launcher/secrets"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// maxSecretData is what a Secret may hold, in bytes.
const maxSecretData = 1 << 20

// makeSeed writes the volume that cloud-init reads. The Secrets are below dir.
func makeSeed(dir string, seed control.CloudInitSeed, path string) error {
	if err := readSecrets(dir, &seed); err != nil {
		return fmt.Errorf("read cloud-init data of volume %s: %w", seed.Volume, err)
	}
	keys, err := readKeys(dir, seed.AccessCredentials)
	if err != nil {
		return fmt.Errorf("read SSH keys for volume %s: %w", seed.Volume, err)
	}
	instance := cloudinit.Instance{ID: seed.InstanceID, UUID: seed.ConfigDriveUUID, Hostname: seed.Hostname, Keys: keys, Devices: seed.Devices}
	label, files := cloudinit.NoCloudLabel, cloudinit.NoCloud
	if seed.ConfigDriveUUID != "" {
		label, files = cloudinit.ConfigDriveLabel, cloudinit.ConfigDrive
	}
	image, err := iso9660.Image(label, files(instance, seed.UserData, seed.NetworkData))
	if err == nil {
		err = os.WriteFile(path, image, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write cloud-init seed %s: %w", seed.Volume, err)
	}
	return nil
}

// readSecrets fills in the data that is in Secrets.
func readSecrets(dir string, seed *control.CloudInitSeed) error {
	// seed.Volume is the name of a volume of the pod, and no path.
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
		data, err := secrets.ReadFile(filepath.Join(dir, key), maxSecretData)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		return data, err
	}
	return nil, fmt.Errorf("the Secret has no key %q", keys[0])
}

// readKeys reads the SSH keys in Secrets: every line of every entry, in the order of the
// entries' names, without comments and empty lines.
func readKeys(dir string, credentials []int) ([]string, error) {
	var keys []string
	for _, number := range credentials {
		left := int64(maxSecretData)
		entries, err := secrets.Read(layout.AccessCredential(dir, number), &left)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			keys = append(keys, e.Keys()...)
		}
	}
	return keys, nil
}
