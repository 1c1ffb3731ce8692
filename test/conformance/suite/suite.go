// Package suite pins KubeVirt's functional tests, and what runs them: ginkgo, and KubeVirt's virtctl.
// It is a module of its own, so that the product needs nothing of KubeVirt's.
package suite
