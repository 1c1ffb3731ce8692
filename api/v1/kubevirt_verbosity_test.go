package v1

import "testing"

func TestVerbosityOfEachComponent(t *testing.T) {
	const all = `{"developerConfiguration":{"logVerbosity":{"virtAPI":1,"virtController":2,"virtHandler":3,"virtLauncher":4,"nodeVerbosity":{"node-1":7}}}}`
	for _, c := range []struct {
		config, component, node string
		want                    int
	}{
		{`{}`, VirtAPI, "node-1", 0},
		{`{"developerConfiguration":{}}`, VirtAPI, "node-1", 0},
		{all, VirtAPI, "node-2", 1},
		{all, VirtController, "node-2", 2},
		{all, VirtHandler, "node-2", 3},
		{all, VirtHandler, "node-1", 7},
		{all, VirtAPI, "node-1", 7},
		{all, VirtHandler, "", 3},
		{`{"developerConfiguration":{"logVerbosity":{"virtHandler":3,"nodeVerbosity":{"node-1":0}}}}`, VirtHandler,
			"node-1", 3},
	} {
		if got := decodeJSON[KubeVirtConfiguration](t, c.config).Verbosity(c.component, c.node); got != c.want {
			t.Errorf("%s on %s: %d, want %d (%s)", c.component, c.node, got, c.want, c.config)
		}
	}
}
