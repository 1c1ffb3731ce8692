// Package v1beta1 holds the supported part of CDI's API group cdi.kubevirt.io/v1beta1:
// DataVolumes and DataSources. virt-controller fills DataVolumes where the real CDI is not.
//
// Every field of CDI's v1.66 stands here. A field that has no effect yet is refused by its path. The
// API server refuses what will stay unsupported for long (s3, gcs, vddk, imageio, archives,
// checkpoints). virt-controller refuses the source whose importer is still to come (snapshot): a
// condition and an event name the field, and the DataVolume
// waits. virt-controller refuses the first sort too, because an object may be older than the schema:
// CDI's objects outlive CDI. A field that CDI does not have is dropped by the API server, with a
// warning. A VirtualMachine's dataVolumeTemplates are not held against this schema, because they must
// suit the real CDI too: the VirtualMachine's condition repeats what the API server said of the
// DataVolume.
//
// +kubebuilder:object:generate=true
// +groupName=cdi.kubevirt.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of all kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "cdi.kubevirt.io", Version: "v1beta1"}

// DataVolumeGroupVersionKind is the kind that owns the claim and the importer pod of a DataVolume.
var DataVolumeGroupVersionKind = GroupVersion.WithKind("DataVolume")

// DataSourceKind is the kind that sourceRef names.
const DataSourceKind = "DataSource"

// Names of the CustomResourceDefinitions: those of this package, and the one of CDI's own
// installation.
const (
	DataVolumeDefinition = "datavolumes.cdi.kubevirt.io"
	DataSourceDefinition = "datasources.cdi.kubevirt.io"
	CDIDefinition        = "cdis.cdi.kubevirt.io"
)

// UploadGroupVersion is the API by which clients ask for the right to upload an image: virt-api's, or
// CDI's where CDI is.
var UploadGroupVersion = schema.GroupVersion{Group: "upload.cdi.kubevirt.io", Version: "v1beta1"}

// UploadService is the name of UploadGroupVersion's APIService.
const UploadService = "v1beta1.upload.cdi.kubevirt.io"

// ManagedByLabel with the value ManagedByKubeqemu is on this package's CustomResourceDefinitions, and
// on what virt-controller makes for a DataVolume. CDI gives its definitions another value.
const (
	ManagedByLabel    = "app.kubernetes.io/managed-by"
	ManagedByKubeqemu = "kubeqemu"
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DataVolume{}, &DataVolumeList{}, &DataSource{}, &DataSourceList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
