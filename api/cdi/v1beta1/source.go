package v1beta1

import v1 "github.com/kubeqemu/kubeqemu/api/v1"

// DataVolumeSource is what fills a disk. Exactly one field is set.
//
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=1
type DataVolumeSource struct {
	// HTTP is an image of a web server.
	// +optional
	HTTP *DataVolumeSourceHTTP `json:"http,omitempty"`
	// Blank is an empty disk.
	// +optional
	Blank *DataVolumeBlankImage `json:"blank,omitempty"`
	// Registry is a container disk of a registry.
	// +optional
	Registry *DataVolumeSourceRegistry `json:"registry,omitempty"`
	// PVC is another claim's disk, of this namespace or another one.
	// +optional
	PVC *DataVolumeSourcePVC `json:"pvc,omitempty"`
	// Snapshot is a VolumeSnapshot of this namespace, which its storage restores.
	// +optional
	Snapshot *DataVolumeSourceSnapshot `json:"snapshot,omitempty"`
	// Upload is what a client sends, as virtctl image-upload does.
	// +optional
	Upload *DataVolumeSourceUpload `json:"upload,omitempty"`

	// S3 is refused: not supported yet.
	// +optional
	S3 *v1.Unsupported `json:"s3,omitempty"`
	// GCS is refused: not supported yet.
	// +optional
	GCS *v1.Unsupported `json:"gcs,omitempty"`
	// Imageio is refused: not supported yet.
	// +optional
	Imageio *v1.Unsupported `json:"imageio,omitempty"`
	// VDDK is refused: not supported yet.
	// +optional
	VDDK *v1.Unsupported `json:"vddk,omitempty"`
}

// DataVolumeSourceHTTP is a disk image of a web server: raw, qcow2, vmdk, vhdx or vdi, or a raw image
// compressed by gzip, xz or zstd.
type DataVolumeSourceHTTP struct {
	// URL of the image: http or https.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`
	// SecretRef names a Secret with a user, accessKeyId, and a password, secretKey.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SecretRef string `json:"secretRef,omitempty"`
	// CertConfigMap names a ConfigMap with certificates of authorities, in PEM.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap string `json:"certConfigMap,omitempty"`
	// ExtraHeaders are sent with each request, as "Name: value".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=1024
	ExtraHeaders []string `json:"extraHeaders,omitempty"`
	// SecretExtraHeaders name Secrets with headers, one a line, as "Name: value".
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	SecretExtraHeaders []string `json:"secretExtraHeaders,omitempty"`
	// Checksum of the file: md5, sha1, sha256 or sha512, a colon, and the digest in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxLength=135
	// +kubebuilder:validation:Pattern=`^(|md5:[0-9a-fA-F]{32}|sha1:[0-9a-fA-F]{40}|sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$`
	Checksum string `json:"checksum,omitempty"`

	// InsecureSkipVerify is refused: name the server's authority in certConfigMap.
	// +optional
	InsecureSkipVerify v1.UnsupportedBool `json:"insecureSkipVerify,omitempty"`
}

// DataVolumeBlankImage is an empty disk.
type DataVolumeBlankImage struct{}

// DataVolumeSourceUpload is a disk that a client sends.
type DataVolumeSourceUpload struct{}

// DataVolumeSourcePVC is another claim's disk.
type DataVolumeSourcePVC struct {
	// Namespace of the claim. Empty is the DataVolume's. From another one, the DataVolume's maker needs
	// the right to create datavolumes/source there.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the claim.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// DataVolumeSourceSnapshot is a VolumeSnapshot.
type DataVolumeSourceSnapshot struct {
	// Namespace of the VolumeSnapshot. Empty is the DataVolume's.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the VolumeSnapshot.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// DataVolumeSourceRegistry is a container disk of a registry: an image with a disk in its folder /disk.
// The node pulls the image, as it pulls those of pods.
type DataVolumeSourceRegistry struct {
	// URL of the image: docker:// and a reference.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL *string `json:"url,omitempty"`
	// ImageStream is OpenShift's. Refused.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImageStream *string `json:"imageStream,omitempty"`
	// PullMethod is pod or node. The node pulls the image in both cases.
	// +optional
	// +kubebuilder:validation:Enum=pod;node
	PullMethod *string `json:"pullMethod,omitempty"`
	// SecretRef is refused: the node pulls with the imagePullSecrets of the namespace's service account
	// default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SecretRef *string `json:"secretRef,omitempty"`
	// CertConfigMap is refused: the node pulls with the certificates that it trusts.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	CertConfigMap *string `json:"certConfigMap,omitempty"`
	// Platform of the image.
	// +optional
	Platform *PlatformOptions `json:"platform,omitempty"`
}

// PlatformOptions choose an image of an index.
type PlatformOptions struct {
	// Architecture of the guest, such as amd64: the importer pod runs on such a node.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Architecture string `json:"architecture,omitempty"`
}

// DataVolumeSourceRef names a DataSource.
type DataVolumeSourceRef struct {
	// Kind is DataSource.
	// +kubebuilder:validation:Enum=DataSource
	Kind string `json:"kind"`
	// Namespace of the DataSource. Default: the DataVolume's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace *string `json:"namespace,omitempty"`
	// Name of the DataSource.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
