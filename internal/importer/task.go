// Package importer is the contract between virt-controller and virt-importer. virt-controller makes
// one importer pod for each DataVolume that it fills. virt-importer fills the claim in that pod.
//
// The pod has no token and needs no network of the cluster but the way to its source. So the pod
// tells nothing by itself: virt-controller asks for the progress through the API server's
// pods/portforward, which a NetworkPolicy does not stop. The kubelet reports how the pod ended.
package importer

import "time"

const (
	// TaskVariable is the environment variable of an importer pod that has its Task, as JSON.
	TaskVariable = "IMPORT_TASK"
	// HostAddressesVariable has the addresses of the pod's node, separated by commas, from the
	// downward API (status.hostIPs). A source at such an address is refused.
	HostAddressesVariable = "HOST_IPS"
	// Port is where virt-importer serves ProgressPath, on the pod's loopback address alone.
	Port = 8444
	// ProgressPath answers GET with a Progress as JSON.
	ProgressPath = "/progress"
	// UploadPath takes PUT with a disk image as the body, where the source is Upload. The answer comes when
	// the whole image has been taken: 204, or another status with the reason as text. The image need not be
	// on the disk yet: Progress and the end of the pod say so. One image is taken at a time.
	UploadPath = "/upload"
	// IdentityPath answers GET with an Identity as JSON, where the pod has a peer.
	IdentityPath = "/identity"
	// PeerPath takes PUT with a Peer as JSON, where the pod has a peer: 204. The same Peer again changes
	// nothing, another one takes the place of the earlier one.
	PeerPath = "/peer"
	// PeerPort is where a pod that serves a claim listens for its peer, on all addresses of the pod, with
	// TLS 1.3. It knows its peer by the peer's certificate, and answers nobody else.
	PeerPort = 8445
	// PeerDiskPath answers the peer's GET and HEAD with the disk's bytes, ranges of it included.
	PeerDiskPath = "/disk"
	// PeerDataPath answers the peer's GET with an Extent as JSON: the next one at or behind the offset that the
	// query's parameter "from" has. It has the ETag that PeerDiskPath has. A reader need not use it.
	PeerDataPath = "/data"
)

// Where an importer pod has its disk, and what a source needs besides the disk.
const (
	// DiskFile is the disk on a claim of volume mode Filesystem. Its folder is the claim's root.
	DiskFile = "/disk/disk.img"
	// DiskDevice is the disk of a claim of volume mode Block.
	DiskDevice = "/dev/disk"
	// CertificatesFolder has a ConfigMap's files, each with certificates of authorities in PEM.
	CertificatesFolder = "/import/certificates"
	// CredentialsFolder has a Secret's files accessKeyId and secretKey: a user and a password.
	CredentialsFolder = "/import/credentials"
	// HeadersFolder has a folder for each Secret with headers, named 0, 1 and so on. Each file has
	// headers, one a line, as "Name: value".
	HeadersFolder = "/import/headers"
	// ImageFolder has the files of a container image.
	ImageFolder = "/import/image"
	// ImageName is what the folder with the socket has for a name, where a container of the pod hands the disk out.
	ImageName = "image"
	// ClaimFile and ClaimDevice are the disk that a pod serves to its peer, by the claim's volume mode.
	ClaimFile   = "/import/claim/disk.img"
	ClaimDevice = "/dev/claim"
)

// Task is what an importer pod does. Secrets are not in it.
type Task struct {
	// Serve: the pod fills no disk, and has no Source and Target. It serves a claim to its peer.
	Serve  *Serve `json:"serve,omitempty"`
	Source Source `json:"source"`
	Target Target `json:"target"`
	// Forbidden are blocks of addresses, as CIDRs, that no source may have. Loopback, link-local,
	// multicast and unspecified addresses, and the node's own, are refused besides.
	Forbidden []string `json:"forbidden,omitempty"`
	// Permitted are blocks of addresses, as CIDRs, that a source may have although they are refused.
	Permitted []string `json:"permitted,omitempty"`
}

// Source is where a disk's content comes from. One field is set.
type Source struct {
	Blank  *Blank  `json:"blank,omitempty"`
	HTTP   *HTTP   `json:"http,omitempty"`
	Image  *Image  `json:"image,omitempty"`
	Claim  *Claim  `json:"claim,omitempty"`
	Upload *Upload `json:"upload,omitempty"`
}

// Claim is another claim's disk, in any namespace and on any node. A second pod, which runs beside that claim,
// serves it as a raw image: see Serve.
//
// The two pods have no secrets in common and no names for each other. Each makes a key and a certificate when
// it starts. virt-controller asks both for their Identity, through the API server, and tells each the other's.
// Besides virt-controller, only who may forward ports to the pods, or exec in them, reaches their loopback addresses.
// virt-controller does so again whenever it asks for the progress: a container that has started again has another key,
// and another peer that somebody else has told is replaced.
type Claim struct{}

// Serve is the task of a pod that serves the disk on a claim to its peer, read-only, as a raw image.
type Serve struct {
	// Block: the disk is ClaimDevice, otherwise ClaimFile.
	Block bool `json:"block,omitempty"`
}

// Identity is whom a pod's peer will see.
type Identity struct {
	// Certificate in PEM, of this process's key.
	Certificate string `json:"certificate"`
}

// Extent is a part of a disk that may have data, in bytes. All before it, from the offset that was asked for on,
// is zeros. Where there is no data any more, Offset is the disk's size and Bytes is 0.
type Extent struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Peer is the other pod of a copied claim.
type Peer struct {
	Identity
	// Address of the pod that serves, with PeerPort. The pod that serves is told no address.
	Address string `json:"address,omitempty"`
}

// Upload is a disk image that somebody sends to UploadPath, in one of HTTP's formats. If the sender breaks off,
// the importer waits for the image to be sent again.
type Upload struct{}

// Image is a container disk, which the node has pulled: an image volume of the pod at ImageFolder, or the image of a
// container that hands out its disk. The disk is the only file in the image's folder /disk, in one of HTTP's formats
// without compression.
type Image struct{}

// Blank is a disk of zeros.
type Blank struct{}

// HTTP is a file of a web server: a disk image in raw, qcow2, vmdk, vhdx or vdi, or a raw image that
// is compressed by gzip, xz or zstd.
type HTTP struct {
	URL string `json:"url"`
	// Checksum is "md5:", "sha1:", "sha256:" or "sha512:" with the digest of the file in hexadecimal,
	// or empty.
	Checksum string `json:"checksum,omitempty"`
	// Headers are sent with each request to the URL's host, as "Name: value".
	Headers []string `json:"headers,omitempty"`
	// Certificates, Credentials: the folder of that name is there.
	Certificates bool `json:"certificates,omitempty"`
	Credentials  bool `json:"credentials,omitempty"`
	// SecretHeaders is how many folders with headers there are.
	SecretHeaders int `json:"secretHeaders,omitempty"`
}

// Target is the disk.
type Target struct {
	// Block: the disk is DiskDevice, otherwise DiskFile.
	Block bool `json:"block,omitempty"`
	// Bytes is the size of the disk that the guest gets: DiskFile is made as large. An image that is
	// larger is refused.
	Bytes int64 `json:"bytes"`
	// Preallocate: the disk has no holes.
	Preallocate bool `json:"preallocate,omitempty"`
}

// Progress is how far an import is.
type Progress struct {
	// Done is how many bytes of Total are done. Total is 0 until it is known. Both count bytes of the
	// disk or of the source's file, whichever tells the time to come better.
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// Anew is how often the import began anew in this process, and AnewReason why it did so last. Done
	// falls only with a new beginning: when Anew grows, or in another process whose Anew is not 0.
	Anew       int    `json:"anew,omitempty"`
	AnewReason string `json:"anewReason,omitempty"`
	// Since is when this process began.
	Since time.Time `json:"since"`
}

// Percent returns the progress from 0 to 100, or false if it is not known.
func (p Progress) Percent() (float64, bool) {
	if p.Total <= 0 || p.Done < 0 {
		return 0, false
	}
	return min(100*float64(p.Done)/float64(p.Total), 100), true
}
