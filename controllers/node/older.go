package node

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// A pod that was made before an upgrade may have its VM started after it. Its
// launcher decodes StartRequest strictly, and its Hello cannot say more than it
// did: an older virt-handler decodes that strictly too. So the launcher is asked
// for something optional.

// knowsAgent says whether a launcher is of a version with the guest agent, and
// what came with it.
func knowsAgent(ctx context.Context, launcher *session) (bool, error) {
	err := launcher.call(ctx, control.CommandGuestInfo, nil, nil)
	var said *control.RemoteError
	if err != nil && !errors.As(err, &said) {
		return false, fmt.Errorf("ask the launcher what it knows: %w", err)
	}
	// Another answer is that there is no agent yet.
	return said == nil || !said.Unknown(control.CommandGuestInfo), nil
}

// forOlder makes of a request what a launcher from before the guest agent takes,
// and says what of the VM it cannot do. The agent's port is the last device:
// without it every other is where it was.
func forOlder(request *control.StartRequest) field.ErrorList {
	request.Machine.Agent = nil
	var errs field.ErrorList
	refuse := func(path *field.Path, what string) {
		errs = append(errs, field.Forbidden(path, what+" needs a virt-launcher of a newer version than this pod's: delete the VMI and make it anew, or restart its VM"))
	}
	for _, seed := range request.CloudInit {
		volume := field.NewPath("spec", "volumes").Key(seed.Volume)
		if seed.ConfigDriveUUID != "" {
			refuse(volume.Child("cloudInitConfigDrive"), "a ConfigDrive")
		}
		if len(seed.AccessCredentials) > 0 {
			refuse(field.NewPath("spec", "accessCredentials"), "an SSH key for volume "+seed.Volume)
		}
	}
	return errs
}
