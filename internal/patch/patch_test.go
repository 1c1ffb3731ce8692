package patch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gomodules.xyz/jsonpatch/v2"

	"github.com/kubeqemu/kubeqemu/internal/cputime"
)

// TestOperationsAreBounded: virt-controller compares objects as large as the API
// server takes them, and whose lists a tenant has chosen.
func TestOperationsAreBounded(t *testing.T) {
	values := strings.TrimSuffix(strings.Repeat(`"v",`, 300_000), ",")
	var disks []string
	for i := range 256 {
		disks = append(disks, fmt.Sprintf(`{"name":"d%d","pad":%q}`, i, strings.Repeat("x", 1000)))
	}
	list := strings.Join(disks, ",")
	raw := []byte(`{"spec":{"affinity":[` + values + `],"disks":[` + list + `]}}`)
	after := []byte(`{"spec":{"affinity":[` + values + `],"disks":[` + strings.ReplaceAll(list, `"pad"`, `"bus":"sata","pad"`) + `,{"name":"more"}],"more":[` + values + `]}}`)
	var operations []jsonpatch.Operation
	var err error
	took := cputime.Of(t, func() { operations, err = Operations(raw, raw, after) })
	if err != nil || len(operations) == 0 {
		t.Fatal(len(operations), err)
	}
	text, err := json.Marshal(operations)
	t.Logf("%d operations, %d bytes, in %s (%v)", len(operations), len(text), took, err)
	if took > 10*time.Second {
		t.Errorf("%d bytes took %s", len(raw), took)
	}
}
