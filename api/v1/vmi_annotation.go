package v1

// DisablePCIHole64Annotation set to true takes away the window for PCI devices above 4 GiB, which some old guests
// cannot take.
const DisablePCIHole64Annotation = "kubevirt.io/disablePCIHole64"

// NoFreePageReportingAnnotation set to true has the guest keep the pages that it has freed, as the KubeVirt object's
// disableFreePageReporting does for all guests.
const NoFreePageReportingAnnotation = "kubevirt.io/free-page-reporting-disabled"
