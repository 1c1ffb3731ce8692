package libvirt

// Input is a tablet or a keyboard.
type Input struct {
	Type    string   `xml:"type,attr"`
	Bus     string   `xml:"bus,attr"`
	Model   string   `xml:"model,attr,omitempty"`
	Alias   Alias    `xml:"alias"`
	Address *Address `xml:"address"`
}

// Graphics is a VNC server.
type Graphics struct {
	Type   string `xml:"type,attr"`
	Listen Listen `xml:"listen"`
}

// Listen is where it listens.
type Listen struct {
	Type   string `xml:"type,attr"`
	Socket string `xml:"socket,attr"`
}

// Video is a graphics card.
type Video struct {
	Model   VideoModel `xml:"model"`
	Address *Address   `xml:"address"`
}

// VideoModel is the card; VRAM is in KiB.
type VideoModel struct {
	Type  string `xml:"type,attr"`
	Heads int    `xml:"heads,attr"`
	VRAM  int    `xml:"vram,attr,omitempty"`
}

// Watchdog of the guest.
type Watchdog struct {
	Model   string   `xml:"model,attr"`
	Action  string   `xml:"action,attr"`
	Address *Address `xml:"address"`
}

// Balloon is the memory balloon; its model may be none.
type Balloon struct {
	Model             string   `xml:"model,attr"`
	FreePageReporting string   `xml:"freePageReporting,attr,omitempty"`
	Address           *Address `xml:"address"`
}

// RNG is a random number generator.
type RNG struct {
	Model   string   `xml:"model,attr"`
	Backend Backend  `xml:"backend"`
	Address *Address `xml:"address"`
}

// Backend is where random numbers come from.
type Backend struct {
	Model string `xml:"model,attr"`
	Path  string `xml:",chardata"`
}
