//go:build older

package main

import (
	"github.com/spf13/cobra"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// newKubelet returns the command of a kubelet before Kubernetes 1.35, which makes its context itself.
func newKubelet() *cobra.Command { return kubelet.NewKubeletCommand() }
