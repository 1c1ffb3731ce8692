package v1beta1

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/api/validation"
)

// MaxDiskBytes bounds the size of a disk, so that no sum of sizes overflows.
const MaxDiskBytes = 1 << 60

// Claim is what the two forms of a DataVolume's claim have in common.
//
// +kubebuilder:object:generate=false
type Claim struct {
	// Path of the form, storage or pvc.
	Path *field.Path
	// Inflate: the size is the disk's, as in the form storage.
	Inflate bool
	// Spec has no defaults.
	Spec corev1.PersistentVolumeClaimSpec
}

// Claim returns the claim that a DataVolume asks for, or nil if it asks for none.
func (s *DataVolumeSpec) Claim() *Claim {
	path := field.NewPath("spec")
	switch {
	case s.PVC != nil:
		return &Claim{Path: path.Child("pvc"), Spec: *s.PVC.DeepCopy()}
	case s.Storage != nil:
		f := s.Storage.DeepCopy()
		return &Claim{Path: path.Child("storage"), Inflate: true, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: f.AccessModes,
			Selector: f.Selector, Resources: f.Resources, VolumeName: f.VolumeName, StorageClassName: f.StorageClassName,
			VolumeMode: f.VolumeMode, DataSource: f.DataSource, DataSourceRef: f.DataSourceRef}}
	}
	return nil
}

// Populated says whether the storage fills a claim, from its dataSource or dataSourceRef.
func (c *Claim) Populated() bool { return c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil }

// Validate returns what keeps a DataVolume from being filled, by the paths of its fields. The API
// server knows most of it, but an object may be older than the schema.
func (s *DataVolumeSpec) Validate() field.ErrorList {
	path := field.NewPath("spec")
	errs := validation.RefusedFields(s, path)
	if s.ContentType != "" && s.ContentType != ContentKubeVirt {
		errs = append(errs, field.NotSupported(path.Child("contentType"), s.ContentType, []DataVolumeContentType{ContentKubeVirt}))
	}
	if s.PVC != nil && s.Storage != nil {
		return append(errs, field.Forbidden(path.Child("pvc"), "set either storage or pvc"))
	}
	claim := s.Claim()
	if claim == nil {
		return append(errs, field.Required(path.Child("storage"), "set storage or pvc"))
	}
	return append(append(errs, claim.validate(claim.Inflate && s.Copies())...), s.validateSources(claim, path)...)
}

// validate: a claim that is sized by a source need not say how large it is.
func (c *Claim) validate(sized bool) (errs field.ErrorList) {
	requests := c.Path.Child("resources", "requests").Key("storage")
	size, set := c.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case !set && sized:
	case !set:
		errs = append(errs, field.Required(requests, "say how large the disk is to be"))
	case size.Value() <= 0 || size.Value() > MaxDiskBytes:
		errs = append(errs, field.Invalid(requests, size.String(), "must be more than 0 and at most 1Ei"))
	}
	if mode := c.Spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeBlock && *mode != corev1.PersistentVolumeFilesystem {
		errs = append(errs, field.NotSupported(c.Path.Child("volumeMode"), *mode, []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock}))
	}
	if ref := c.Spec.DataSourceRef; ref != nil && ref.Namespace != nil && *ref.Namespace != "" {
		errs = append(errs, field.Forbidden(c.Path.Child("dataSourceRef", "namespace"), "not supported yet: name an object of the DataVolume's namespace"))
	}
	return errs
}

func (s *DataVolumeSpec) validateSources(claim *Claim, path *field.Path) field.ErrorList {
	switch {
	case s.Source != nil && s.SourceRef != nil:
		return field.ErrorList{field.Forbidden(path.Child("sourceRef"), "source and sourceRef exclude each other")}
	case claim.Populated() && (s.Source != nil || s.SourceRef != nil):
		return field.ErrorList{field.Forbidden(path.Child("source"), "the claim has a dataSource or dataSourceRef already")}
	case s.SourceRef != nil:
		return s.SourceRef.validate(path.Child("sourceRef"))
	case s.Source != nil:
		return s.Source.validate(path.Child("source"))
	case !claim.Populated():
		return field.ErrorList{field.Required(path.Child("source"), "set a source, such as blank or http")}
	}
	return nil
}

func (s *DataVolumeSource) validate(path *field.Path) (errs field.ErrorList) {
	set := 0
	for _, there := range []bool{s.HTTP != nil, s.Blank != nil, s.Registry != nil, s.PVC != nil, s.Snapshot != nil, s.Upload != nil, s.S3 != nil, s.GCS != nil, s.Imageio != nil, s.VDDK != nil} {
		if there {
			set++
		}
	}
	switch {
	case set == 0:
		errs = append(errs, field.Required(path, "set a source, such as blank or http"))
	case set > 1:
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("%d sources are set: set one", set)))
	}
	if s.HTTP != nil {
		errs = append(errs, s.HTTP.validate(path.Child("http"))...)
	}
	if s.Registry != nil {
		errs = append(errs, s.Registry.validate(path.Child("registry"))...)
	}
	if s.PVC != nil {
		errs = append(errs, s.PVC.validate(path.Child("pvc"))...)
	}
	if s.Snapshot != nil {
		errs = append(errs, s.Snapshot.validate(path.Child("snapshot"))...)
	}
	return validation.InOrder(errs)
}

// dockerScheme begins the URL of a container disk.
const dockerScheme = "docker://"

// Reference is the container image of a valid source.
func (s *DataVolumeSourceRegistry) Reference() string {
	return strings.TrimPrefix(ptr.Deref(s.URL, ""), dockerScheme)
}

// validate refuses what has no effect when the node pulls the image, whatever pullMethod says.
func (s *DataVolumeSourceRegistry) validate(path *field.Path) (errs field.ErrorList) {
	u := ptr.Deref(s.URL, "")
	switch {
	case u == "" && s.ImageStream == nil:
		errs = append(errs, field.Required(path.Child("url"), "name a container image, as docker://registry.example/disk:tag"))
	case len(u) > maxURL:
		errs = append(errs, field.TooLong(path.Child("url"), "", maxURL))
	case u != "" && (!strings.HasPrefix(u, dockerScheme) || s.Reference() == "" || strings.ContainsAny(u, " \t\r\n")):
		errs = append(errs, field.Invalid(path.Child("url"), u, "must be docker:// and a container image"))
	}
	if s.ImageStream != nil {
		errs = append(errs, field.Forbidden(path.Child("imageStream"), "not supported: name the image in url"))
	}
	const nodePulls = "not supported without CDI: the node pulls the image, with the imagePullSecrets of the namespace's service account default and the certificates that the node trusts"
	if s.SecretRef != nil {
		errs = append(errs, field.Forbidden(path.Child("secretRef"), nodePulls))
	}
	if s.CertConfigMap != nil {
		errs = append(errs, field.Forbidden(path.Child("certConfigMap"), nodePulls))
	}
	return errs
}

var checksum = regexp.MustCompile(`^(|md5:[0-9a-fA-F]{32}|sha1:[0-9a-fA-F]{40}|sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$`)

// Bounds of what an http source brings into its importer pod.
const (
	maxURL     = 2048
	maxHeaders = 16
	maxHeader  = 1024
)

func (s *DataVolumeSourceHTTP) validate(path *field.Path) (errs field.ErrorList) {
	u, err := url.Parse(s.URL)
	switch {
	case len(s.URL) > maxURL:
		errs = append(errs, field.TooLong(path.Child("url"), "", maxURL))
	case err != nil:
		errs = append(errs, field.Invalid(path.Child("url"), s.URL, "must be a URL"))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		errs = append(errs, field.Invalid(path.Child("url"), s.URL, "must begin with http:// or https:// and a host"))
	}
	if !checksum.MatchString(s.Checksum) {
		errs = append(errs, field.Invalid(path.Child("checksum"), s.Checksum, "must be md5:, sha1:, sha256: or sha512: with the digest in hexadecimal"))
	}
	for name, list := range map[string][]string{"extraHeaders": s.ExtraHeaders, "secretExtraHeaders": s.SecretExtraHeaders} {
		if len(list) > maxHeaders {
			errs = append(errs, field.TooMany(path.Child(name), len(list), maxHeaders))
			continue
		}
		for i, item := range list {
			if len(item) > maxHeader {
				errs = append(errs, field.TooLong(path.Child(name).Index(i), "", maxHeader))
			}
		}
	}
	return errs
}
