package apiserver

import _ "embed"

// CDI is a stand-in of CDI: its kinds, as far as Kubeqemu looks at them. Nothing of CDI runs: a
// test says what becomes of DataVolumes.
//
//go:embed cdi.yaml
var CDI string
