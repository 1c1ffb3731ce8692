// Package peers lets two virt-handlers talk about a guest that moves from the node of one to the node of the
// other: HTTP/1.1 over TLS. The source's virt-handler dials.
//
//	POST /v1/migrations/UID/prepare     Offer → Answer, once the target waits for the guest
//	GET  /v1/migrations/UID/state       with "Upgrade: kubeqemu-stream": the guest's memory and devices
//	GET  /v1/migrations/UID/disks/NAME  the same, for a disk
//	POST /v1/migrations/UID/receive     nothing → nothing; all channels are open
//
// The UID is that of the VirtualMachineInstanceMigration. Errors are answered with a status and one line of text.
//
// The source shows the certificate of the role authority.HandlerClient, and the target that of
// authority.HandlerServer. The target lets in only nodes from which a guest is to come.
package peers

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Port is where virt-handler waits for other virt-handlers, on its node's addresses.
const Port = 8188

// Version is the version of the protocol. A target refuses an offer with a field that it does not know, and names the
// field.
const Version = 1

// Offer is a guest that is to come.
type Offer struct {
	Version int `json:"version"`
	// VMI whose guest it is.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Machine is the source's, and QEMUVersion that of its QEMU.
	Machine     qemuargs.Machine `json:"machine"`
	QEMUVersion string           `json:"qemuVersion"`
	// CPU is the source's processor.
	CPU CPU `json:"cpu"`
	// Claims are the sizes, in bytes, of the disks for which the target has claims of its own, by name.
	Claims map[string]int64 `json:"claims,omitempty"`
	// Host holds the facts from which the source's arguments were made: a resolve.Host, as JSON. It is empty if they are
	// not known, or longer than MaxHost.
	Host string `json:"host,omitempty"`
	// Wishes are features that the source would use if the target can. A target ignores a wish that it does not know.
	Wishes []string `json:"wishes,omitempty"`
}

// Answer is what a target says of an offer that it takes.
type Answer struct {
	// Granted are the wishes that the target can fulfil.
	Granted []string `json:"granted,omitempty"`
	// Denied says why it cannot fulfil others, by name.
	Denied map[string]string `json:"denied,omitempty"`
}

// WishPostCopy is the wish that the guest's memory may come after the guest.
const WishPostCopy = "post-copy"

// MaxHost bounds the Host of an offer, in bytes.
const MaxHost = 32 << 10

// Bounds of an offer. A Machine has at most 256 KiB, and a Host, whose quotes are escaped, 64 KiB.
const (
	maxOffer  = 384 << 10
	maxValues = 20 << 10
)

// Bounds of an answer.
const (
	maxAnswer       = 8 << 10
	maxAnswerValues = 100
)

// readAnswer decodes an answer, within bounds. No text is an empty answer.
func readAnswer(text []byte) (*Answer, error) {
	var answer Answer
	if len(text) == 0 {
		return &answer, nil
	}
	if n := jsonsize.Values(text); n > maxAnswerValues {
		return nil, fmt.Errorf("the target's answer has %d values, at most %d are read", n, maxAnswerValues)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("decode the target's answer: %w", err)
	}
	return &answer, nil
}

var errBadOffer = errors.New("bad offer")

// readOffer decodes an offer, within bounds. It refuses a field that it does not know: without that field the guest
// would go on with another machine, or without what its source had for it.
func readOffer(text []byte) (*Offer, error) {
	if n := jsonsize.Values(text); n > maxValues {
		return nil, fmt.Errorf("%w: %d values, at most %d are read", errBadOffer, n, maxValues)
	}
	var offer Offer
	if err := control.Decode(text, &offer); err != nil {
		return nil, fmt.Errorf("%w: %s", errBadOffer, control.Short(err.Error())) // which quotes a field's name, of any length
	}
	if offer.Version != Version {
		return nil, fmt.Errorf("%w: the source speaks version %d of the protocol, and this virt-handler version %d", errBadOffer, offer.Version, Version)
	}
	return &offer, nil
}
