package agent

import (
	"context"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
)

// Info returns all that the agent says. What the agent does not know, or does not tell while
// the file systems are frozen, is left out.
func (a *Agent) Info(ctx context.Context) (control.GuestInfo, error) {
	var i control.GuestInfo
	known := a.Report()
	for _, ask := range []func() error{
		func() (err error) { i.AgentInfo, err = a.client.Info(ctx); return err },
		func() (err error) { i.FreezeStatus, err = a.client.FreezeStatus(ctx); return err },
		func() (err error) { i.Hostname, err = a.client.Hostname(ctx); return err },
		func() (err error) { i.OS, err = a.client.OS(ctx); return err },
		func() (err error) { i.Timezone, err = a.client.Timezone(ctx); return err },
		func() (err error) { i.Users, err = a.client.Users(ctx); return err },
		func() (err error) { i.FSInfo.FileSystems, err = a.client.FileSystems(ctx); return err },
	} {
		if err := ask(); silent(err) {
			return i, err
		}
	}
	if i.OS == (control.GuestOS{}) {
		i.OS = known.OS
	}
	if i.FreezeStatus == guestagent.Thawed {
		i.FreezeStatus = "" // as in KubeVirt
	}
	return i, nil
}

// Users returns the users who are logged in to the guest.
func (a *Agent) Users(ctx context.Context) (control.GuestUsers, error) {
	users, err := a.client.Users(ctx)
	return control.GuestUsers{Items: users}, err
}

// FileSystems returns the guest's mounted file systems.
func (a *Agent) FileSystems(ctx context.Context) (control.GuestFileSystems, error) {
	systems, err := a.client.FileSystems(ctx)
	return control.GuestFileSystems{Items: systems}, err
}

// Reboot makes the agent reboot the guest.
func (a *Agent) Reboot(ctx context.Context) error { return a.client.Reboot(ctx) }
