// Package older serves the older versions of the API groups, such as kubevirt.io/v1alpha3. An object is the same in all
// versions but for apiVersion. virt-api passes a request on in the current version, and writes the older version into
// the answer. So an older version has the current version's schema, defaults, webhooks and policies.
//
// The CustomResourceDefinitions could name these versions themselves. For each of them, an API
// server would keep one more copy of every object in memory (30 KiB for a VM with its VMI, measured
// with kube-apiserver 1.36), and one more schema.
package older

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Account is the user in whose name virt-api passes requests on. Admission sees this user, so no
// request has the rights that admission gives to virt-api. It is no service account: no token of it
// can exist, and it is in no group but system:authenticated.
const Account = "kubevirt.io:older-versions"

// AccountWithoutDelete and AccountWithoutCreate are the users in whose name virt-api passes on the changes of users who
// lack a right that a change may need. The API server then refuses such a change itself, in the moment of the change.
// An apply needs the right to create if it makes the object. A change of ownerReferences needs the right to delete the
// object, if the API server has the admission plugin OwnerReferencesPermissionEnforcement. AccountWithoutCreate has
// neither right.
const (
	AccountWithoutDelete = Account + ":no-delete"
	AccountWithoutCreate = Account + ":no-create"
)

// IsAccount reports whether a user is one in whose name virt-api passes requests on.
func IsAccount(user string) bool {
	return user == Account || user == AccountWithoutDelete || user == AccountWithoutCreate
}

// CallerKey is an extra attribute of Account: the name of the user who sent the request. Audit logs and admission
// policies see the attribute.
const CallerKey = "kubevirt.io/caller"

// Version is an older version of a group, and the version of the group's CustomResourceDefinitions.
type Version struct{ Group, Older, Current string }

// Versions returns the older versions. KubeVirt converts none of their objects either.
func Versions() []Version {
	return []Version{
		{kubevirt, "v1alpha3", "v1"},
		{pool, "v1alpha1", "v1beta1"},
		{instancetype, "v1alpha1", "v1beta1"},
		{instancetype, "v1alpha2", "v1beta1"},
	}
}

// APIService is the name of the version's APIService.
func (v Version) APIService() string { return v.Older + "." + v.Group }

func (v Version) older() string   { return v.Group + "/" + v.Older }
func (v Version) current() string { return v.Group + "/" + v.Current }

// Groups.
const (
	kubevirt     = "kubevirt.io"
	pool         = "pool.kubevirt.io"
	instancetype = "instancetype.kubevirt.io"
)

// resource is a row of the table of resources.
type resource struct {
	group, plural, singular, kind string
	cluster, scale                bool
	categories, shortNames        []string
}

// resources returns the resources of the CustomResourceDefinitions, as discovery describes them.
func resources() []resource {
	all := []string{"all"}
	return []resource{
		{group: kubevirt, plural: "kubevirts", singular: "kubevirt", kind: "KubeVirt", categories: all, shortNames: []string{"kv", "kvs"}},
		{group: kubevirt, plural: "virtualmachines", singular: "virtualmachine", kind: "VirtualMachine", categories: all, shortNames: []string{"vm", "vms"}},
		{group: kubevirt, plural: "virtualmachineinstances", singular: "virtualmachineinstance", kind: "VirtualMachineInstance", categories: all,
			shortNames: []string{"vmi", "vmis"}},
		{group: kubevirt, plural: "virtualmachineinstancereplicasets", singular: "virtualmachineinstancereplicaset", kind: "VirtualMachineInstanceReplicaSet",
			scale: true, categories: all, shortNames: []string{"vmirs", "vmirss"}},
		{group: kubevirt, plural: "virtualmachineinstancemigrations", singular: "virtualmachineinstancemigration", kind: "VirtualMachineInstanceMigration",
			categories: all, shortNames: []string{"vmim", "vmims"}},
		{group: kubevirt, plural: "virtualmachineinstancepresets", singular: "virtualmachineinstancepreset", kind: "VirtualMachineInstancePreset",
			shortNames: []string{"vmipreset", "vmipresets"}},
		{group: pool, plural: "virtualmachinepools", singular: "virtualmachinepool", kind: "VirtualMachinePool", scale: true, categories: all,
			shortNames: []string{"vmpool", "vmpools"}},
		{group: instancetype, plural: "virtualmachineinstancetypes", singular: "virtualmachineinstancetype", kind: "VirtualMachineInstancetype", categories: all,
			shortNames: []string{"vminstancetype", "vminstancetypes", "vmf", "vmfs"}},
		{group: instancetype, plural: "virtualmachineclusterinstancetypes", singular: "virtualmachineclusterinstancetype", kind: "VirtualMachineClusterInstancetype",
			cluster: true, shortNames: []string{"vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"}},
		{group: instancetype, plural: "virtualmachinepreferences", singular: "virtualmachinepreference", kind: "VirtualMachinePreference", categories: all,
			shortNames: []string{"vmpref", "vmprefs", "vmp", "vmps"}},
		{group: instancetype, plural: "virtualmachineclusterpreferences", singular: "virtualmachineclusterpreference", kind: "VirtualMachineClusterPreference",
			cluster: true, shortNames: []string{"vmcp", "vmcps"}},
	}
}

// discovery is what the API server and clients read at the version's root.
func (v Version) discovery() *metav1.APIResourceList {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: v.older()}
	for _, r := range resources() {
		if r.group != v.Group {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.plural, SingularName: r.singular, Namespaced: !r.cluster, Kind: r.kind,
			Verbs:      metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
			Categories: r.categories, ShortNames: r.shortNames})
		if r.scale {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.plural + "/scale", Namespaced: true, Group: "autoscaling", Version: "v1", Kind: "Scale",
				Verbs: metav1.Verbs{"get", "patch", "update"}})
		}
	}
	return list
}
