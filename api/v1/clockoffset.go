package v1

// Timezone is the time zone whose time the guest's clock shows; empty for UTC.
func (d *DomainSpec) Timezone() string {
	if d.Clock == nil {
		return ""
	}
	return d.Clock.Timezone
}
