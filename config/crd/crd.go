// Package crd holds the CustomResourceDefinitions as they are installed.
package crd

import "embed"

// Files are the CustomResourceDefinitions: a file <group>_<plural>.yaml for each kind.
//
//go:embed *_*.yaml
var Files embed.FS
