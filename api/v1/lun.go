package v1

import "k8s.io/apimachinery/pkg/util/validation/field"

// LunTarget is a SCSI device of the node, whose commands the guest sends itself. The volume must be a claim of mode
// Block, or a DataVolume with one.
type LunTarget struct {
	// Bus is scsi, which is also the default.
	// +optional
	// +kubebuilder:validation:Enum=virtio;sata;scsi;usb
	Bus DiskBus `json:"bus,omitempty"`
	// ReadOnly: the guest cannot write. Default: false.
	// +optional
	ReadOnly bool `json:"readonly,omitempty"`

	// Reservation is never supported: reservations go through qemu-pr-helper, which needs CAP_SYS_RAWIO on the node.
	// +optional
	Reservation NeverBool `json:"reservation,omitempty" never:"reservations go through qemu-pr-helper, which needs CAP_SYS_RAWIO on the node"`
}

func validateLun(d *Disk, volume *Volume, path *field.Path) field.ErrorList {
	if d.Lun == nil {
		return nil
	}
	p := path.Child("lun")
	if d.Disk != nil || d.CDRom != nil {
		return field.ErrorList{field.Invalid(path, d.Name, "a disk is one of disk, cdrom and lun")}
	}
	errs := oneOf(d.Lun.Bus, p.Child("bus"), DiskBusSCSI)
	if c := volume.Claim(); c == nil || c.Overlay {
		errs = append(errs, field.Forbidden(p, "only a persistentVolumeClaim or a dataVolume, of mode Block, can be a LUN"))
	}
	for _, own := range []struct {
		name string
		set  bool
	}{{"serial", d.Serial != ""}, {"blockSize", asksBlockSize(d.BlockSize)}} {
		if own.set {
			errs = append(errs, field.Forbidden(path.Child(own.name), "the guest sees the LUN's own"))
		}
	}
	if d.Cache != "" && d.Cache != CacheNone {
		errs = append(errs, field.Forbidden(path.Child("cache"), "a LUN goes past the page cache"))
	}
	return errs
}
