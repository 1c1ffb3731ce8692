// Package layout says where things are inside the launcher's pod. The pod
// renderer mounts them there, and the launcher and QEMU find them there.
package layout

import (
	"path"
	"strconv"
)

const (
	// RunDir holds sockets and the cloud-init seed; memory, not disk.
	RunDir = "/run/kubeqemu"
	// SlotDir is the folder that virt-handler's device plugin gave the pod,
	// with the socket that the launcher dials.
	SlotDir    = "/run/kubeqemu-slot"
	SlotSocket = SlotDir + "/handler.sock"
	// OverlayDir holds empty disks, and overlays: what the guest writes over disks that are
	// only read.
	OverlayDir = "/var/lib/kubeqemu/overlays"
	// ImageVolumeDir holds one folder per container disk: the whole image.
	ImageVolumeDir = "/var/lib/kubeqemu/images"
	// KernelDir holds the image of a kernel that is booted directly, or the copies of that image's files.
	KernelDir = "/var/lib/kubeqemu/kernel"
	// ImageDir holds one folder per container disk that a container of its own hands out, with that container's socket.
	// The folder is that container's too, so nothing in it is believed. ImageSocketDir is where the container has its
	// socket.
	ImageDir       = "/run/kubeqemu-images"
	ImageSocketDir = "/run/kubeqemu-image"
	// ProgramDir holds the program for the containers of the pod that have a tenant's image. It is mounted at the root,
	// over whatever the image has there.
	ProgramDir = "/kubeqemu"
	// Program is that program.
	Program = ProgramDir + "/program"
	// SecretDir holds one folder per Secret with cloud-init data.
	SecretDir = "/var/lib/kubeqemu/secrets"
	// ConfigDir holds one folder per volume of which the launcher makes a disk.
	ConfigDir = "/var/lib/kubeqemu/config"
	// ClaimDir holds one folder per PersistentVolumeClaim of mode Filesystem, and
	// per file of the node that is a disk.
	ClaimDir = "/var/lib/kubeqemu/claims"
	// BlockDir holds one device per PersistentVolumeClaim of mode Block. It is
	// below /dev, where container runtimes make device nodes.
	BlockDir = "/dev/kubeqemu"
	// ClaimDisk is the disk's file in the root of a claim's volume, KubeVirt's name.
	ClaimDisk = "disk.img"
	// ConsoleSocket is where "virt-launcher console" attaches.
	ConsoleSocket = RunDir + "/console.sock"
	// AgentSocket is where "virt-launcher guest-ping" and "guest-exec" ask.
	AgentSocket = RunDir + "/agent.sock"
	// VNCSocket is QEMU's VNC server.
	VNCSocket = RunDir + "/vnc.sock"
	// FirmwareDir holds OVMF's files, by Debian's names.
	FirmwareDir = "/usr/share/OVMF"
	// FirmwareDirARM64 holds AAVMF's files.
	FirmwareDirARM64 = "/usr/share/AAVMF"
	// Variables are the guest's UEFI variables.
	Variables = RunDir + "/uefi-variables.fd"
	// StateDir holds the volume of the claim with the guest's state, if the VMI has such a claim. Each kind of state has a
	// folder of its own there. Whoever can mount the claim can write to it, so nothing in it is believed.
	StateDir = "/var/lib/kubeqemu/state"
	// TPM holds the state of a TPM that ends with its VMI.
	TPM = RunDir + "/tpm"
	// StateTPM holds the state of a TPM on the claim with the guest's state.
	StateTPM = StateDir + "/tpm"
	// TerminationLog is Kubernetes' default terminationMessagePath.
	TerminationLog = "/dev/termination-log"
	// FileSystemDir holds one folder per file system, with the socket of the program that serves it. The folder is that
	// program's container's too, so nothing in it is believed.
	FileSystemDir = "/run/kubeqemu-filesystems"
	// FileSystemRoot is where a file system's container has the files that it shares, and FileSystemSocketDir where it has
	// its socket.
	FileSystemRoot      = "/run/kubeqemu-shared"
	FileSystemSocketDir = "/run/kubeqemu-filesystem"
	// PasstDir holds one folder per interface with passt, with the socket of that program. The folder is that program's
	// container's too, so nothing in it is believed. PasstSocketDir is where the program's container has its socket.
	PasstDir       = "/run/kubeqemu-networks"
	PasstSocketDir = "/run/kubeqemu-network"
	// Passt is the program that connects guests to the pod network without a tap.
	Passt = "/usr/bin/passt"
	// VirtioFSD is the program that serves a file system.
	VirtioFSD = "/usr/libexec/virtiofsd"
	// QEMU is the emulator in the launcher image, and QEMUForARM64 that for guests of arm64.
	QEMU         = "/usr/bin/qemu-system-x86_64"
	QEMUForARM64 = "/usr/bin/qemu-system-aarch64"
	// SWTPM is the emulator of TPMs in the launcher image.
	SWTPM = "/usr/bin/swtpm"
	// QEMUVersion is a file with QEMU's version, such as 11.1.3, written as the
	// image is built.
	QEMUVersion = "/usr/share/kubeqemu/qemu-version"
)

// Below returns a path of this package below the folder root. Where there is no pod, root stands for
// the pod's root. An empty root leaves the path alone.
func Below(root, name string) string {
	if root == "" {
		return name
	}
	return path.Join(root, name)
}

// ImageVolume returns the folder of a container disk's image.
func ImageVolume(volume string) string { return path.Join(ImageVolumeDir, volume) }

// imageSocket is the socket's name in its folder.
const imageSocket = "image.sock"

// ImageFolder returns the folder with the socket of the container that hands out a container disk, in the launcher's
// container.
func ImageFolder(volume string) string { return path.Join(ImageDir, volume) }

// ImageSocket returns the socket of the container that hands out a container disk. dir is ImageDir, or stands for it.
func ImageSocket(dir, volume string) string { return path.Join(dir, volume, imageSocket) }

// OwnImageSocket returns the same socket in that container.
func OwnImageSocket() string { return path.Join(ImageSocketDir, imageSocket) }

// Claim returns the folder of the volume of a PersistentVolumeClaim, or of a hostDisk.
func Claim(volume string) string { return path.Join(ClaimDir, volume) }

// BlockDevice returns the device of a PersistentVolumeClaim of mode Block.
func BlockDevice(volume string) string { return path.Join(BlockDir, volume) }

// Overlay returns the overlay of a container disk or ephemeral claim, or an empty disk.
func Overlay(volume string) string { return path.Join(OverlayDir, volume+".qcow2") }

// Keys in Secrets with cloud-init data, KubeVirt's; the first that exists is read.
func UserDataKeys() []string    { return []string{"userdata", "userData"} }
func NetworkDataKeys() []string { return []string{"networkdata", "networkData"} }

// UserDataSecret returns the folder of the Secret with a volume's user data.
func UserDataSecret(volume string) string { return path.Join(SecretDir, volume, "user") }

// NetworkDataSecret returns the folder of the Secret with a volume's network data.
func NetworkDataSecret(volume string) string { return path.Join(SecretDir, volume, "network") }

// accessCredentials is no volume's name: those have no underscore.
const accessCredentials = "access_credentials"

// AccessCredential returns the folder of the Secret of spec.accessCredentials[number]. dir is
// SecretDir, or stands for it.
func AccessCredential(dir string, number int) string {
	return path.Join(dir, accessCredentials, strconv.Itoa(number))
}

// StateVariables returns the guest's UEFI variables on the claim with its state. Each of OVMF's two builds has its own:
// variables that began without the keys of secure boot would leave secure boot off.
func StateVariables(secureBoot bool) string {
	name := "uefi-variables.fd"
	if secureBoot {
		name = "uefi-variables-secure-boot.fd"
	}
	return path.Join(StateDir, "nvram", name)
}

// Config returns the folder with the files of a config volume.
func Config(volume string) string { return path.Join(ConfigDir, volume) }

// ConfigImage returns the disk made of a config volume's files.
func ConfigImage(volume string) string { return path.Join(RunDir, "config-"+volume+".iso") }

// ACPITable returns the launcher's copy of a table that a volume holds.
func ACPITable(signature string) string { return path.Join(RunDir, "acpi-"+signature) }

// fileSystemSocket is the socket's name in its folder.
const fileSystemSocket = "virtiofsd.sock"

// FileSystemFolder returns the folder with a file system's socket, in the launcher's container.
func FileSystemFolder(name string) string { return path.Join(FileSystemDir, name) }

// FileSystemSocket returns a file system's socket, in the launcher's container.
func FileSystemSocket(name string) string { return path.Join(FileSystemFolder(name), fileSystemSocket) }

// OwnFileSystemSocket returns the same socket in the file system's container.
func OwnFileSystemSocket() string { return path.Join(FileSystemSocketDir, fileSystemSocket) }

// passtSocket is the socket's name in its folder.
const passtSocket = "passt.sock"

// PasstFolder returns the folder with the socket of an interface's passt, in the launcher's container.
func PasstFolder(nic string) string { return path.Join(PasstDir, nic) }

// PasstSocket returns the socket of an interface's passt, in the launcher's container.
func PasstSocket(nic string) string { return path.Join(PasstFolder(nic), passtSocket) }

// OwnPasstSocket returns the same socket in passt's container.
func OwnPasstSocket() string { return path.Join(PasstSocketDir, passtSocket) }

// Lifeline returns the socket beside the socket of a program in a container of its own. QEMU holds a connection to the
// lifeline, which tells that container when QEMU has ended.
func Lifeline(socket string) string { return socket + ".lifeline" }

// CloudInit returns the seed made for a cloud-init volume.
func CloudInit(volume string) string { return path.Join(RunDir, "cloud-init-"+volume+".iso") }
