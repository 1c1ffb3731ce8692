// Package cloudinit says which files cloud-init reads its configuration from.
//
// It is pure: the same input gives the same files.
package cloudinit

import (
	"encoding/json"
	"strconv"

	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
)

// Instance is what a seed tells the guest about itself.
type Instance struct {
	// ID is how cloud-init's NoCloud recognizes a first boot.
	ID string
	// UUID is how cloud-init's ConfigDrive recognizes a first boot.
	UUID     string
	Hostname string
	// Keys are public SSH keys for the default user, a line each.
	Keys []string
	// Devices are those with tags, of which a ConfigDrive tells.
	Devices []Device
}

// Device is a device of the guest and its tags (https://docs.openstack.org/nova/latest/user/metadata.html).
type Device struct {
	// Type is nic or disk.
	Type string `json:"type"`
	// Bus is pci, scsi, sata or usb, and Address the place on it.
	Bus     string   `json:"bus"`
	Address string   `json:"address,omitempty"`
	MAC     string   `json:"mac,omitempty"`
	Serial  string   `json:"serial,omitempty"`
	Tags    []string `json:"tags"`
}

// Labels of the volumes that the seeds go on.
const (
	NoCloudLabel     = "cidata"
	ConfigDriveLabel = "config-2"
)

// NoCloud returns the files of a NoCloud seed. The data source needs meta-data and user-data.
// It would take an empty network-config for a configuration, so that file is left out.
//
// https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html
func NoCloud(i Instance, userData, networkData []byte) []iso9660.File {
	metaData := struct {
		InstanceID string            `json:"instance-id"`
		Hostname   string            `json:"local-hostname"`
		Keys       map[string]string `json:"public-keys,omitempty"`
	}{i.ID, i.Hostname, numbered(i.Keys)}
	files := []iso9660.File{{Path: "meta-data", Data: line(metaData)}, {Path: "user-data", Data: userData}}
	if len(networkData) > 0 {
		files = append(files, iso9660.File{Path: "network-config", Data: networkData})
	}
	return files
}

// ConfigDrive returns the files of a ConfigDrive seed, as KubeVirt writes them.
//
// https://docs.cloud-init.io/en/latest/reference/datasources/configdrive.html
func ConfigDrive(i Instance, userData, networkData []byte) []iso9660.File {
	metaData := struct {
		InstanceID string            `json:"instance_id"`
		Hostname   string            `json:"hostname"`
		UUID       string            `json:"uuid"`
		Keys       map[string]string `json:"public_keys,omitempty"`
		Devices    []Device          `json:"devices,omitempty"`
	}{i.ID, i.Hostname, i.UUID, numbered(i.Keys), i.Devices}
	const dir = "openstack/latest/"
	files := []iso9660.File{{Path: dir + "meta_data.json", Data: line(metaData)}, {Path: dir + "user_data", Data: userData}}
	if len(networkData) > 0 {
		files = append(files, iso9660.File{Path: dir + "network_data.json", Data: networkData})
	}
	return files
}

// line encodes metadata, which consists of strings and so always encodes. JSON is
// YAML too.
func line(metaData any) []byte {
	data, _ := json.Marshal(metaData)
	return append(data, '\n')
}

// numbered returns keys in the form that both data sources read: each key under a name, which
// means nothing.
func numbered(keys []string) map[string]string {
	named := map[string]string{}
	for i, key := range keys {
		named[strconv.Itoa(i)] = key
	}
	return named
}
