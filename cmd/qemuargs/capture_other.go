//go:build !unix

package main

import (
	"context"
	"errors"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

var errNoCapture = errors.New("a capture needs Linux or another Unix; the captures that it makes work everywhere")

// capture cannot be: QEMU's monitor is a file that it inherits.
func capture(context.Context, string) (*schema.Schema, error) { return nil, errNoCapture }
