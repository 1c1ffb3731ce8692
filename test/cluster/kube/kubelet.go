//go:build !older

package main

import (
	"context"

	"github.com/spf13/cobra"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// newKubelet returns the kubelet's command.
func newKubelet() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }
