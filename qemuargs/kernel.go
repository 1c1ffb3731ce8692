package qemuargs

// Kernel is a kernel that is booted without a boot loader.
type Kernel struct {
	// Path and Initrd are in the launcher's file system.
	Path   string `json:"path"`
	Initrd string `json:"initrd,omitempty"`
	Args   string `json:"args,omitempty"`
}

// args returns no arguments for a machine that boots from its disks.
func (k *Kernel) args() []Arg {
	if k == nil {
		return nil
	}
	args := []Arg{{Flag: "-kernel", Value: k.Path}}
	if k.Initrd != "" {
		args = append(args, Arg{Flag: "-initrd", Value: k.Initrd})
	}
	if k.Args != "" {
		args = append(args, Arg{Flag: "-append", Value: k.Args})
	}
	return args
}
