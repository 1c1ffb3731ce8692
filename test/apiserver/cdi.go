package apiserver

// CDI is a stand-in of CDI: its kinds, as far as Kubeqemu looks at them. Nothing of CDI runs: a
// test says what becomes of DataVolumes.
const CDI = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datasources.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datasources, singular: datasource, kind: DataSource, listKind: DataSourceList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datavolumes.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datavolumes, singular: datavolume, kind: DataVolume, listKind: DataVolumeList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
